// Copies between host and device that have been queued and not yet waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <variant>
#include <vector>

namespace kvbound::cuda::emulation {

/// A thread's queued copies. The device's side of each takes part when it is queued; the host's not before it
/// is waited for.
class QueuedCopies {
 public:
  static QueuedCopies& of_thread();

  /// What was copied to the device: the host's memory has to stay as it is until complete().
  void add_to_device(const void* from, int64_t bytes);
  /// What was copied from the device arrives in the host's memory by complete().
  void add_to_host(void* to, const void* from, int64_t bytes);
  /// The number of copies that were ever queued.
  int64_t added() const { return completed_ + std::ssize(waiting_); }
  /// Completes the first `count` of all that were ever queued, of those that there are. Throws DeviceError if
  /// the host has changed memory that a copy to the device still used.
  void complete(int64_t count);

 private:
  struct ToDevice {
    const std::byte* from;
    int64_t bytes;
    uint64_t sum;
  };
  struct ToHost {
    void* to;
    std::vector<std::byte> bytes;
  };

  std::deque<std::variant<ToDevice, ToHost>> waiting_;
  int64_t completed_ = 0;
};

}  // namespace kvbound::cuda::emulation
