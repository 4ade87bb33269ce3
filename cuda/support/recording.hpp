// Work that is queued again and again with the same launches.
#pragma once

#include <functional>
#include <memory>

#include "device.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Launches that are queued as one: a CUDA graph, or emulated a list of the launches with their arguments.
///
/// The work may launch kernels, set memory to 0 and copy within the device, always with the same arguments,
/// in memory that stays where it is until forget().
class Recording {
 public:
  Recording();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Queues work on a stream. The first time it is called as it is, so that it may allocate what it needs;
  /// the second time it is called to record what it queues on the stream that it is given; from then on it
  /// is not called any more. Throws DeviceError, the second time also if the work waits, allocates, or
  /// copies to or from the host, and from then on if its memory has moved.
  ///
  /// memory  where the memory is that the work shares with others, which may replace it by larger one
  void run(Stream stream, const std::function<void(Stream)>& work, const void* memory = nullptr);
  /// The next work is another one, or has other arguments.
  void forget();

 private:
  struct Graph;
  void require_in_place(const void* memory) const {
    if (memory == memory_) return;
    throw DeviceError("repeat recorded work", "the memory that it uses has moved", __FILE__, __LINE__);
  }

  bool ran_ = false;
  std::unique_ptr<Graph> graph_;
  const void* memory_ = nullptr;  // when it was recorded
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
