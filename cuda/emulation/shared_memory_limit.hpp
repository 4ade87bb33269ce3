// How much shared memory the emulated device grants a block.
#pragma once

#include <cstdint>

namespace kvbound::cuda::emulation {

/// What compute capability 9.0 grants a block, bytes; the emulated device grants it, too, unless it is told otherwise.
inline constexpr int64_t kMostSharedMemory = 232448;
/// And what 8.0 does, and 8.6 and 8.9, which grant the least of all that the kernels run on.
inline constexpr int64_t kSharedMemoryOf80 = 166912, kSharedMemoryOf86 = 101376;

/// What the device grants a block from now on, in all threads.
int64_t shared_memory_limit();

/// Sets the limit, at most kMostSharedMemory, for its own life, then the one before again.
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
