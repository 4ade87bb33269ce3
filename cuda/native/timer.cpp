#include <kvbound/cuda/support/timer.hpp>

#include "cuda_event.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

struct Timer::Marks {
  CudaEvent start{cudaEventDefault}, stop{cudaEventDefault};
};

Timer::Timer() : marks_(std::make_unique<Marks>()) {}
Timer::~Timer() = default;

void Timer::start(Stream stream) { marks_->start.record(stream); }
void Timer::stop(Stream stream) { marks_->stop.record(stream); }

double Timer::seconds() {
  marks_->stop.wait();
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, marks_->start.get(), marks_->stop.get()), "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
