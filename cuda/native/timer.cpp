#include <cuda_runtime.h>

#include <kvbound/cuda/support/timer.hpp>

#include "check.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

struct Timer::Marks {
  Event start, stop;
};

Timer::Timer() : marks_(std::make_unique<Marks>()) {}
Timer::~Timer() = default;

void Timer::start(Stream stream) { check(cudaEventRecord(marks_->start.get(), stream), "cudaEventRecord"); }
void Timer::stop(Stream stream) { check(cudaEventRecord(marks_->stop.get(), stream), "cudaEventRecord"); }

double Timer::seconds() {
  check(cudaEventSynchronize(marks_->stop.get()), "cudaEventSynchronize");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, marks_->start.get(), marks_->stop.get()), "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
