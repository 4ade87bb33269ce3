// A CUDA event and its end.
#pragma once

#include <kvbound/cuda/support/device.hpp>

#include "check.hpp"

namespace kvbound::cuda::native {

class CudaEvent {
 public:
  explicit CudaEvent(unsigned flags) { check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate"); }
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(Stream stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void wait() const { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace kvbound::cuda::native
