// Compiled for the counted build alone.
#include "device_counting.hpp"

#include <algorithm>

#include <kvbound/cuda/counting/counting.hpp>
#include <kvbound/cuda/emulation/multiprocessors.hpp>
#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/cuda/support/device.hpp>
#include <kvbound/reference/core/error.hpp>

namespace kvbound::sim {
namespace {

constexpr cuda::counting::Sampling kSampling{1e6};  // about a second for each launch

}  // namespace

ActingAs::ActingAs(const Gpu& gpu) {
  if (!cuda::counting::accesses_are_counted()) {
    throw NoDevice(
        "nothing can be predicted: only GCC, without sanitizers, builds kernels that say what they access");
  }
  cuda::emulation::set_multiprocessors(static_cast<int>(gpu.of("multiprocessors")));
}
ActingAs::~ActingAs() { cuda::emulation::set_multiprocessors(cuda::emulation::kMultiprocessors); }

CountedWork counted_work(const std::function<void()>& work) {
  const cuda::counting::Counting counting(kSampling);
  const cuda::DeviceCounters before = cuda::counted::counters();
  work();
  return {counting.launches(), cuda::counted::counters() - before};
}

void run_sampled(const std::function<void()>& work) { static_cast<void>(counted_work(work)); }

Prediction predict(const Gpu& gpu, CountedWork work, const std::optional<DeviceWork>& floor) {
  Prediction prediction{gpu.name(), std::move(work), {}, std::nullopt, std::nullopt};
  prediction.time = operation_time(prediction.work, gpu);
  if (floor) {
    prediction.floor_seconds =
        std::max(floor->bytes / gpu.of("copy_bandwidth"), floor->flop / gpu.of("matrix_rate"));
  }
  return prediction;
}

}  // namespace kvbound::sim
