#include "busy_multiprocessors.hpp"

#include <algorithm>

#include <cuda_runtime.h>

#include <kvbound/cuda/native/check.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>

namespace kvbound::cuda::native {
namespace {

enum State { kNotBegun, kBusy, kOutOfTime };

constexpr long long kMostClocks = 4'000'000'000;

__global__ void busy_kernel(volatile int* states, const volatile int* is_to_end) {
  states[blockIdx.x] = kBusy;
  const long long start = clock64();
  while (*is_to_end == 0) {
    if (clock64() - start > kMostClocks) {
      states[blockIdx.x] = kOutOfTime;
      return;
    }
    __nanosleep(1000);
  }
}

}  // namespace

BusyMultiprocessors::BusyMultiprocessors(int count)
    : count_(count),
      states_(
          static_cast<int*>(detail::allocate_page_locked((count + 1) * static_cast<int64_t>(sizeof(int))))) {
  std::fill_n(states_, count + 1, 0);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  launch<busy_kernel>({extent(count), extent(1), device().shared_memory_per_block, stream_}, states_,
                      states_ + count);
  const auto have_begun = [this] {
    return std::none_of(states_, states_ + count_,
                        [](const volatile int& state) { return state == kNotBegun; });
  };
  while (!have_begun() && cudaStreamQuery(stream_) == cudaErrorNotReady) {
  }
}

BusyMultiprocessors::~BusyMultiprocessors() {
  states_[count_] = 1;
  cudaStreamSynchronize(stream_);  // a failure here is reported by the next call
  cudaStreamDestroy(stream_);
  detail::release_page_locked(states_);
}

bool BusyMultiprocessors::end() {
  states_[count_] = 1;
  synchronise(stream_);
  return std::all_of(states_, states_ + count_, [](int state) { return state == kBusy; });
}

}  // namespace kvbound::cuda::native
