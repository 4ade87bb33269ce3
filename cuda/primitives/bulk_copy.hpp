// Copies of many bytes by one thread (cp.async.bulk, sm_90). Addresses and numbers of bytes are multiples
// of 16. A copy is complete when its bytes have been counted by the mbarrier, which has to expect them.
//
// source  PTX ISA, 9.7.9.25.4 (non-tensor bulk copies)
#pragma once

#include "mbarrier.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_NATIVE

/// Begins to copy from global to shared memory.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, int bytes, uint64_t* barrier) {
  if constexpr (kHasClusters) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(shared)),
        "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
  } else {
    __trap();
  }
}

#else

inline void bulk_load(void* shared, const void* global, int bytes, uint64_t* barrier,
                      CallSite where = CallSite::current()) {
  emulation::load_bulk(shared, global, bytes, barrier, where);
}

#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
