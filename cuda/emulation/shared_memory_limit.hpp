// The shared memory that a block of the emulated device may have, and with it the generation
// that the device stands for.
#pragma once

#include <cstdint>

namespace kvbound::cuda::emulation {

/// Bytes of shared memory that compute capability 9.0 grants a block, and the emulated device by default.
inline constexpr int64_t kMostSharedMemory = 232448;
/// The same of 8.0, and of 8.6 and 8.9, which grant the least of all devices that the kernels run on.
inline constexpr int64_t kSharedMemoryOf80 = 166912, kSharedMemoryOf86 = 101376;

/// The current limit, in all threads.
int64_t shared_memory_limit();

/// The compute capability that the emulated device claims: the highest one whose
/// limit that may be, times ten.
int compute_capability();

/// Sets the limit, at most kMostSharedMemory, for this object's lifetime, then restores the previous one.
class ScopedSharedMemoryLimit {
 public:
  explicit ScopedSharedMemoryLimit(int64_t bytes);
  ~ScopedSharedMemoryLimit();
  ScopedSharedMemoryLimit(const ScopedSharedMemoryLimit&) = delete;
  ScopedSharedMemoryLimit& operator=(const ScopedSharedMemoryLimit&) = delete;

 private:
  int64_t before_;
};

}  // namespace kvbound::cuda::emulation
