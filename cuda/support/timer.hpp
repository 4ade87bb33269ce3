// How long what was queued on a stream takes, by the device's own clock.
#pragma once

#include <memory>

#include "device.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Two marks on a stream. Native: CUDA events, which the device stamps when it comes to them, to half a microsecond.
/// Emulated: the clock on the wall, since everything queued has been done.
class Timer {
 public:
  Timer();  ///< throws DeviceError, as everything here
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void start(Stream stream);
  void stop(Stream stream);

  /// From start to stop; waits for the stop.
  double seconds();

 private:
  struct Marks;
  std::unique_ptr<Marks> marks_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
