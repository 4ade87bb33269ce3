// What the instructions of Hopper have in common: which code is compiled for them, and addresses in shared
// memory. Later devices have them, too, but for wgmma and setmaxnreg, which only sm_90a has.
//
// The same kernel is also compiled for devices without them, where it ends with a trap as soon as it comes to
// one: a launch has to ask device().has_clusters or has_wgmma first.
#pragma once

#include "kernel.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_NATIVE

/// Whether this pass of the compiler makes code for compute capability 9.0 or later: clusters, mbarriers,
/// TMA.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasClusters = true;
#else
inline constexpr bool kHasClusters = false;
#endif
/// Whether it makes code for sm_90a: wgmma, setmaxnreg.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kHasWgmma = true;
#else
inline constexpr bool kHasWgmma = false;
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
