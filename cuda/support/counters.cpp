#include "counters.hpp"

#include <atomic>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

DeviceCounters& counters() {
  static thread_local DeviceCounters of_thread;
  return of_thread;
}

namespace {
std::atomic<bool> all_blocks_run = true;
}

bool launches_are_whole() { return all_blocks_run; }
void set_launches_whole(bool whole) { all_blocks_run = whole; }

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
