// Powers of two by the special function units (ex2.approx).
#pragma once

#include "kernel.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// 2^exponent, off by at most 2 units in the last place, as exp2f is, but 0 where that is below 2^-126. That
/// takes one instruction instead of four.
#ifdef KVBOUND_CUDA_NATIVE
__device__ __forceinline__ float power_of_two(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}
#else
inline float power_of_two(float exponent) {
  const float power = exp2f(exponent);
  return power < 0x1p-126F ? 0 : power;
}
#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
