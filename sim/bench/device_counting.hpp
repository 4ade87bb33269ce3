// The work of device operations, counted instead of timed, and what a model of a GPU makes of it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <kvbound/sim/roofline/gpu.hpp>
#include <kvbound/sim/roofline/operation_time.hpp>

#include "device_work.hpp"

namespace kvbound::sim {

/// An operation's predicted time on a GPU that was not at hand.
struct Prediction {
  std::string gpu;
  CountedWork work;
  OperationTime time;
  /// The least that its arguments and results require at the GPU's copy bandwidth and matrix rate; nullopt: no such
  /// figure.
  std::optional<double> floor_seconds;
  std::optional<double> attention_seconds;  ///< of a step: attention alone over the same cache
};

/// Lets the counted device have as many multiprocessors as the GPU while it lives, so that launches are the GPU's.
class ActingAs {
 public:
  /// Throws NoDevice in a program whose kernels do not say what they access.
  explicit ActingAs(const Gpu& gpu);
  ~ActingAs();
  ActingAs(const ActingAs&) = delete;
  ActingAs& operator=(const ActingAs&) = delete;
};

/// What `work` does on the counted device; launches too long for that are sampled.
CountedWork counted_work(const std::function<void()>& work);
/// Runs `work` with long launches sampled, so that it only prepares what is counted later.
void run_sampled(const std::function<void()>& work);

/// floor: nullopt if the operation has no minimal work of its own.
Prediction predict(const Gpu& gpu, CountedWork work, const std::optional<DeviceWork>& floor);

}  // namespace kvbound::sim
