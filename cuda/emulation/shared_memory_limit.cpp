#include "shared_memory_limit.hpp"

#include <algorithm>
#include <atomic>

namespace kvbound::cuda::emulation {
namespace {

std::atomic<int64_t> limit = kMostSharedMemory;

}  // namespace

int64_t shared_memory_limit() { return limit; }

int compute_capability() {
  const int64_t bytes = limit;
  if (bytes >= kMostSharedMemory) return 90;
  return bytes >= kSharedMemoryOf80 ? 80 : 86;
}

ScopedSharedMemoryLimit::ScopedSharedMemoryLimit(int64_t bytes)
    : before_(limit.exchange(std::min(bytes, kMostSharedMemory))) {}
ScopedSharedMemoryLimit::~ScopedSharedMemoryLimit() { limit = before_; }

}  // namespace kvbound::cuda::emulation
