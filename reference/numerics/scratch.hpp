// Memory to work in, whose pages cost little to come by.
#pragma once

#ifdef __linux__
#include <sys/mman.h>

#endif

#include <cstddef>
#include <memory>
#include <new>

namespace kvbound::reference {

/// Room for `count` doubles, of no particular value. In pages of 2 MiB where the system grants them: tens of
/// megabytes in pages of 4 KiB take longer to be mapped than to be filled.
///
/// throws  std::bad_alloc
class Scratch {
 public:
  explicit Scratch(size_t count)
      : numbers_(static_cast<double*>(::operator new(count * sizeof(double), std::align_val_t(kPage)))) {
#ifdef __linux__
    // A wish; if it is not granted, nothing is lost.
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
