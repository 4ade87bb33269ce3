// What the instructions of Hopper (sm_90a) have in common: which code is compiled for it, and
// addresses in shared memory.
//
// The same kernel is also compiled for sm_80, where it ends with a trap as soon as it comes to one of these
// instructions: a launch has to ask device().compute_capability first.
#pragma once

#include "kernel.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_NATIVE

/// Whether this pass of the compiler makes code for sm_90a.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kIsHopper = true;
#else
inline constexpr bool kIsHopper = false;
#endif

/// The address in the window of shared memory: that of a byte of the block's own, or of
/// another block's of its cluster.
__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

#else

inline uint32_t shared_address(const void* shared, CallSite where = CallSite::current()) {
  return emulation::shared_address(shared, where);
}

#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
