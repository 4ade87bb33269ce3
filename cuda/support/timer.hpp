// The time that operations queued on a stream take, by the device's clock.
#pragma once

#include <memory>

#include "device.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Two marks on a stream. Native: CUDA events, whose times the device records, with a resolution of half a
/// microsecond. Emulated: the processor's steady clock, because launches are synchronous there.
class Timer {
 public:
  Timer();  ///< throws DeviceError, as all members do
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void start(Stream stream);
  void stop(Stream stream);

  /// Seconds from start to stop; waits until the stop has been recorded.
  double seconds();

 private:
  struct Marks;
  std::unique_ptr<Marks> marks_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
