// What a thread asks of the device, counted: what an operation costs beside its kernels' own work.
#pragma once

#include <cstdint>

#include "build.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Requests of one thread, in both builds; a graph that is launched as one counts the kernels it consists of.
struct DeviceCounters {
  int64_t launches = 0;          ///< of kernels
  int64_t fills = 0;             ///< memory set to 0
  int64_t moves = 0;             ///< copies within the device
  int64_t synchronisations = 0;  ///< waits of the host, also for copies whose end it waits for
  int64_t uploads = 0;           ///< copies to the device
  int64_t upload_bytes = 0;
  int64_t downloads = 0;  ///< copies to the host
  int64_t download_bytes = 0;
  int64_t allocations = 0;  ///< of device memory and of page-locked memory

  DeviceCounters& operator+=(const DeviceCounters& more) { return *this = *this - (DeviceCounters() - more); }
  friend DeviceCounters operator-(const DeviceCounters& later, const DeviceCounters& earlier) {
    return {later.launches - earlier.launches,
            later.fills - earlier.fills,
            later.moves - earlier.moves,
            later.synchronisations - earlier.synchronisations,
            later.uploads - earlier.uploads,
            later.upload_bytes - earlier.upload_bytes,
            later.downloads - earlier.downloads,
            later.download_bytes - earlier.download_bytes,
            later.allocations - earlier.allocations};
  }
  friend bool operator==(const DeviceCounters&, const DeviceCounters&) = default;
};

/// The calling thread's requests so far.
DeviceCounters& counters();

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
