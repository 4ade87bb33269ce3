// The CUDA runtime's errors as exceptions.
#pragma once

#include <cuda_runtime.h>
#include <concepts>
#include <string>

#include <kvbound/cuda/support/build.hpp>
#include <kvbound/reference/core/call_site.hpp>
#include <kvbound/reference/core/error.hpp>

namespace kvbound::cuda::native {

inline std::string words(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + ", " + cudaGetErrorString(error);
}

/// Throws DeviceError unless the call succeeded. `call` returns its description, and is
/// called only for an error.
template <std::invocable Call>
void check(cudaError_t error, const Call& call, CallSite where = CallSite::current()) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears an error that is not sticky, so that the next call does not return it
  throw DeviceError(call(), words(error), where.file, where.line);
}
inline void check(cudaError_t error, const char* call, CallSite where = CallSite::current()) {
  check(
      error, [call] { return std::string(call); }, where);
}

}  // namespace kvbound::cuda::native
