// Barriers in shared memory that count arrivals and the bytes of bulk copies (mbarrier, sm_90).
//
// A barrier is 64 bits, aligned to 8 bytes, and goes through phases 0, 1, 2, ... A phase is complete when all
// expected arrivals have come, and as many bytes have landed as were expected; the next phase begins at once
// and expects as many arrivals. A waiting thread names a phase by its parity, number % 2: the current phase,
// for which it waits, or the one before, for which it does not. So it flips its phase bit after every wait;
// one that waits with parity 1 on a fresh barrier goes on at once.
//
//     one thread:   mbarrier_init(barrier, 1); mbarrier_fence_init(); then a barrier of the block
//     producer:     mbarrier_arrive_expect(barrier, bytes); bulk copies of so many bytes
//     consumers:    mbarrier_wait(barrier, phase); phase ^= 1;
//
// source  PTX ISA, 9.7.13.15 (mbarrier)
#pragma once

#include "hopper.hpp"

#ifndef KVBOUND_CUDA_NATIVE
#include <kvbound/cuda/emulation/async_proxy.hpp>
#endif

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Whose bytes and arrivals a thread waits for.
enum class Senders : uint8_t { block, cluster };

#ifdef KVBOUND_CUDA_NATIVE

/// Begins phase 0; every phase expects so many arrivals, 1..2^20 - 1. mbarrier.init
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals) {
  if constexpr (kHasClusters) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
  } else {
    __trap();
  }
}

/// Shows the barriers that this thread has initialised to bulk copies and to the cluster. fence.mbarrier_init
__device__ __forceinline__ void mbarrier_fence_init() {
  if constexpr (kHasClusters) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  } else {
    __trap();
  }
}

/// One arrival, behind everything that the thread has done before. mbarrier.arrive
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  if constexpr (kHasClusters) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
  } else {
    __trap();
  }
}

/// Expects so many bytes of bulk copies in this phase, besides those expected already, and arrives; a phase
/// expects at most 2^20 - 1 bytes. mbarrier.arrive.expect_tx
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, int bytes) {
  if constexpr (kHasClusters) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
  } else {
    __trap();
  }
}

/// Returns when the phase of this parity is complete; what happened before its arrivals has happened, and its
/// bytes have landed.
///
/// from  who sends: the block itself and bulk copies, mbarrier.try_wait.parity; or also other blocks of the
///       cluster, .acquire.cluster
template <Senders from = Senders::block>
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, unsigned parity) {
  if constexpr (kHasClusters) {
    const uint32_t address = shared_address(barrier);
    uint32_t done = 0;
    while (done == 0) {
      if constexpr (from == Senders::cluster) {
        asm volatile(
            "{ .reg .pred complete;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%1], %2;\n"
            "selp.u32 %0, 1, 0, complete; }"
            : "=r"(done)
            : "r"(address), "r"(parity)
            : "memory");
      } else {
        asm volatile(
            "{ .reg .pred complete;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
            "selp.u32 %0, 1, 0, complete; }"
            : "=r"(done)
            : "r"(address), "r"(parity)
            : "memory");
      }
    }
  } else {
    __trap();
  }
}

#else

inline void mbarrier_init(uint64_t* barrier, int arrivals, CallSite where = CallSite::current()) {
  emulation::async_proxy().mbarriers.init(barrier, arrivals, where);
}

inline void mbarrier_fence_init() { emulation::async_proxy().mbarriers.fence(); }

inline void mbarrier_arrive(uint64_t* barrier, CallSite where = CallSite::current()) {
  emulation::async_proxy().mbarriers.arrive(barrier, 0, where);
}

inline void mbarrier_arrive_expect(uint64_t* barrier, int bytes, CallSite where = CallSite::current()) {
  emulation::async_proxy().mbarriers.arrive(barrier, bytes, where);
}

template <Senders from = Senders::block>
void mbarrier_wait(uint64_t* barrier, unsigned parity, CallSite where = CallSite::current()) {
  emulation::async_proxy().mbarriers.wait(barrier, parity, where);
}

#endif

/// The stages of a pipeline in the order in which its producer and its consumers go through them, each with
/// mbarriers of its own: the phase that is waited for changes whenever the stages begin anew.
template <int kStages>
struct StageRing {
  int stage = 0;
  unsigned phase = 0;

  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    phase ^= 1;
  }
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
