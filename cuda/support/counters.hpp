// What a thread asks of the device, counted: what an operation costs beside its kernels' own work.
#pragma once

#include <cstdint>
#include <functional>

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
  int64_t recordings = 0;   ///< of work that is then queued again and again

  /// join(one's, other's) of each count.
  template <class Join>
  static DeviceCounters joined(const DeviceCounters& one, const DeviceCounters& other, const Join& join) {
    return {join(one.launches, other.launches),
            join(one.fills, other.fills),
            join(one.moves, other.moves),
            join(one.synchronisations, other.synchronisations),
            join(one.uploads, other.uploads),
            join(one.upload_bytes, other.upload_bytes),
            join(one.downloads, other.downloads),
            join(one.download_bytes, other.download_bytes),
            join(one.allocations, other.allocations),
            join(one.recordings, other.recordings)};
  }
  DeviceCounters& operator+=(const DeviceCounters& more) { return *this = joined(*this, more, std::plus()); }
  friend DeviceCounters operator-(const DeviceCounters& later, const DeviceCounters& earlier) {
    return joined(later, earlier, std::minus());
  }
  friend bool operator==(const DeviceCounters&, const DeviceCounters&) = default;
};

inline namespace KVBOUND_CUDA_BUILD {

/// The calling thread's requests so far.
DeviceCounters& counters();

/// Whether all blocks of all launches run. While launches are sampled in order to be counted
/// (counting/counting.hpp) they do not: results are then not those of an operation, and nobody asks
/// whether they are finite.
bool launches_are_whole();
void set_launches_whole(bool whole);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
