// What a thread asks of the device, counted: what an operation costs beside its kernels' own work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "build.hpp"

namespace kvbound::cuda {

/// Requests of a thread. A graph that is launched as one counts as the kernels that it consists of.
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

/// The larger one of each count.
inline DeviceCounters most_of_each(const DeviceCounters& one, const DeviceCounters& other) {
  return {std::max(one.launches, other.launches),
          std::max(one.fills, other.fills),
          std::max(one.moves, other.moves),
          std::max(one.synchronisations, other.synchronisations),
          std::max(one.uploads, other.uploads),
          std::max(one.upload_bytes, other.upload_bytes),
          std::max(one.downloads, other.downloads),
          std::max(one.download_bytes, other.download_bytes),
          std::max(one.allocations, other.allocations)};
}

inline namespace KVBOUND_CUDA_BUILD {

/// The calling thread's requests so far.
DeviceCounters& counters();

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
