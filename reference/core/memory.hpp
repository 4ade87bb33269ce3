// Memory for arrays of numbers, in huge pages where they are large.
#pragma once

#ifdef __linux__
#include <sys/mman.h>

#endif

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace kvbound::detail {

/// Allocates arrays of numbers.
///
/// Numbers that are given no value keep what is in memory, so that those who write them first, on whatever
/// thread, are the first to touch their pages. Arrays of 8 MiB or more lie in pages of 2 MiB where the system
/// grants them: in pages of 4 KiB they take longer to map, and to unmap, than to fill.
template <class Number>
struct NumberAllocator {
  using value_type = Number;

  NumberAllocator() = default;
  template <class Other>
  NumberAllocator(const NumberAllocator<Other>& /*other*/) {}
  bool operator==(const NumberAllocator& /*other*/) const = default;

  /// throws  std::bad_alloc
  Number* allocate(size_t count) {
    if (!is_large(count)) return std::allocator<Number>().allocate(count);
    void* const numbers = ::operator new(count * sizeof(Number), std::align_val_t(kHugePage));
#ifdef __linux__
    // A hint: if the system does not follow it, the memory has ordinary pages.
    madvise(numbers, count * sizeof(Number), MADV_HUGEPAGE);
#endif
    return static_cast<Number*>(numbers);
  }
  void deallocate(Number* numbers, size_t count) {
    if (!is_large(count)) return std::allocator<Number>().deallocate(numbers, count);
    ::operator delete(static_cast<void*>(numbers), std::align_val_t(kHugePage));
  }
  void construct(Number* place) { ::new (static_cast<void*>(place)) Number; }
  template <class... Values>
  void construct(Number* place, Values&&... values) {
    ::new (static_cast<void*>(place)) Number(std::forward<Values>(values)...);
  }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  static bool is_large(size_t count) { return count >= 4 * kHugePage / sizeof(Number); }
};

}  // namespace kvbound::detail
