// How many rows of blocks a grid of the emulated device has along y before it goes on along z.
#pragma once

#include <cstdint>

namespace kvbound::cuda::emulation {

/// What every GPU takes along y and z, and the emulated device by default.
inline constexpr int64_t kMostRows = 65535;

/// The current number, in all threads.
int64_t grid_rows();

/// Sets it, so that few rows are enough to go on along z, for this object's lifetime, then restores it.
class ScopedGridRows {
 public:
  explicit ScopedGridRows(int64_t rows);
  ~ScopedGridRows();
  ScopedGridRows(const ScopedGridRows&) = delete;
  ScopedGridRows& operator=(const ScopedGridRows&) = delete;

 private:
  int64_t before_;
};

}  // namespace kvbound::cuda::emulation
