// The order of loads and of what uses them.
#pragma once

#include "kernel.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The loads in front of it are issued before anything behind it, so that they are in flight together: else
/// the compiler puts a load beside its only use where that is in a branch, behind the wait for another load.
__device__ __forceinline__ void loads_first() {
#ifdef KVBOUND_CUDA_NATIVE
  asm volatile("" ::: "memory");
#endif
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
