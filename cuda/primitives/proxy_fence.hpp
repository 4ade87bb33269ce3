// The fence between a thread's own accesses to shared memory and those of the asynchronous proxy: wgmma
// (fence.proxy.async, sm_90).
//
// A thread that has written shared memory makes the fence, and then arrives at a barrier; behind that barrier
// the asynchronous proxy may read. What a bulk load has written needs no fence. The emulation finds a missing
// fence where the asynchronous proxy reads bytes that differ from those at the block's last fence. It cannot
// see which thread has written them: that the fence is the writer's, and not another thread's behind the
// barrier, remains to be shown by review.
//
// source  PTX ISA, 9.7.13.4 (membar, fence) and 8.8 (asynchronous operations)
#pragma once

#include "hopper.hpp"

#ifndef KVBOUND_CUDA_NATIVE
#include <kvbound/cuda/emulation/async_proxy.hpp>
#endif

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_NATIVE

/// Shows what this thread has written to the block's shared memory to the asynchronous proxy.
__device__ __forceinline__ void fence_async_proxy() {
  if constexpr (kHasClusters) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  } else {
    __trap();
  }
}

#else

inline void fence_async_proxy() { emulation::fence_async_proxy(); }

#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
