// Work that a process does once, whatever it is asked for: it does not count among what
// was asked of the device.
#pragma once

#include "counters.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Leaves the thread's counters as they were.
class Uncounted {
 public:
  Uncounted() = default;
  ~Uncounted() { counters() = before_; }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  DeviceCounters before_ = counters();
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
