// The predicted time of an operation: of its launches, one after the other, and of what the host does for it.
#pragma once

#include <vector>

#include <kvbound/cuda/counting/kernel_counts.hpp>
#include <kvbound/cuda/support/counters.hpp>

#include "launch_time.hpp"

namespace kvbound::sim {

/// What an operation did on the counted device.
struct CountedWork {
  std::vector<cuda::counting::LaunchCounts> launches;
  cuda::DeviceCounters requests;
};

struct OperationTime {
  std::vector<LaunchTime> launches;
  double device_seconds = 0;            ///< kernels, fills and copies within the device, as one graph
  double host_seconds = 0;              ///< copies to and from the host, waits, allocations
  double kernel_seconds = 0;            ///< kernels without what their launches take
  Resource limiter = Resource::launch;  ///< of most of device_seconds
};

OperationTime operation_time(const CountedWork& work, const Gpu& gpu);

}  // namespace kvbound::sim
