// Compiled for the counted build alone.
#include "device_counting.hpp"

#include <kvbound/cuda/counting/counting.hpp>
#include <kvbound/cuda/emulation/multiprocessors.hpp>
#include <kvbound/cuda/support/counters.hpp>

namespace kvbound::sim {
namespace {

constexpr cuda::counting::Sampling kSampling{1e6};  // about a second for each launch

}  // namespace

ActingAs::ActingAs(const Gpu& gpu) {
  cuda::emulation::set_multiprocessors(static_cast<int>(gpu.of("multiprocessors")));
}
ActingAs::~ActingAs() { cuda::emulation::set_multiprocessors(cuda::emulation::kMultiprocessors); }

CountedWork counted_work(const std::function<void()>& work) {
  const cuda::counting::Counting counting(kSampling);
  const cuda::DeviceCounters before = cuda::counted::counters();
  work();
  return {counting.launches(), cuda::counted::counters() - before};
}

}  // namespace kvbound::sim
