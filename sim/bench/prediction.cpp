#include "prediction.hpp"

#include <algorithm>

namespace kvbound::sim {

Prediction predict(const Gpu& gpu, CountedWork work, const std::optional<DeviceWork>& floor) {
  Prediction prediction{std::move(work), {}, std::nullopt, std::nullopt};
  prediction.time = operation_time(prediction.work, gpu);
  if (floor) {
    prediction.floor_seconds =
        std::max(floor->bytes / gpu.of("copy_bandwidth"), floor->flop / gpu.of("matrix_rate"));
  }
  return prediction;
}

}  // namespace kvbound::sim
