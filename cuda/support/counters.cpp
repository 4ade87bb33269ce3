#include "counters.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

DeviceCounters& counters() {
  static thread_local DeviceCounters of_thread;
  return of_thread;
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
