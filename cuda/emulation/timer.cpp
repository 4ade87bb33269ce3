#include <chrono>

#include <kvbound/cuda/support/timer.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

struct Timer::Marks {
  std::chrono::steady_clock::time_point start, stop;
};

Timer::Timer() : marks_(std::make_unique<Marks>()) {}
Timer::~Timer() = default;

void Timer::start(Stream) { marks_->start = std::chrono::steady_clock::now(); }
void Timer::stop(Stream) { marks_->stop = std::chrono::steady_clock::now(); }

double Timer::seconds() { return std::chrono::duration<double>(marks_->stop - marks_->start).count(); }

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
