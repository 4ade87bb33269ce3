// Working memory in huge pages, which are cheap to map.
#pragma once

#ifdef __linux__
#include <sys/mman.h>

#endif

#include <cstddef>
#include <memory>
#include <new>

namespace kvbound::reference {

/// Uninitialised memory for `count` doubles. In pages of 2 MiB where the system grants them: tens of
/// megabytes in pages of 4 KiB take longer to map than to fill.
///
/// throws  std::bad_alloc
class Scratch {
 public:
  explicit Scratch(size_t count)
      : numbers_(static_cast<double*>(::operator new(count * sizeof(double), std::align_val_t(kPage)))) {
#ifdef __linux__
    // A hint: if the system does not follow it, the memory has ordinary pages.
    madvise(numbers_.get(), count * sizeof(double), MADV_HUGEPAGE);
#endif
  }

  double* data() const { return numbers_.get(); }

 private:
  static constexpr size_t kPage = size_t{2} << 20;

  struct Release {
    void operator()(double* numbers) const { ::operator delete(numbers, std::align_val_t(kPage)); }
  };

  std::unique_ptr<double, Release> numbers_;
};

}  // namespace kvbound::reference
