// What a model of a GPU makes of an operation's counted work.
#pragma once

#include <optional>
#include <string>

#include <kvbound/sim/roofline/gpu.hpp>
#include <kvbound/sim/roofline/operation_time.hpp>

#include "device_work.hpp"

namespace kvbound::sim {

/// An operation's predicted time on a GPU that was not at hand.
struct Prediction {
  CountedWork work;
  OperationTime time;
  /// The least that its arguments and results require at the GPU's copy bandwidth and matrix rate;
  /// nullopt: no such figure.
  std::optional<double> floor_seconds;
  std::optional<double> attention_seconds;  ///< of a step: attention alone over the same cache
};

/// floor: nullopt if the operation has no minimal work of its own.
Prediction predict(const Gpu& gpu, CountedWork work, const std::optional<DeviceWork>& floor);

}  // namespace kvbound::sim
