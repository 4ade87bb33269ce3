// Numbers that threads put into the shared memory of another block of their cluster, which an mbarrier there
// counts (sm_90): its threads wait for them as for bulk copies, and no barrier of the cluster is needed.
//
//     every block:  mbarrier_init(arrived, 1); mbarrier_fence_init(); then a barrier of the cluster
//                   one thread: mbarrier_arrive_expect(arrived, 4 numbers)
//     senders:      store_async(to, rank, number, arrived)
//     receivers:    mbarrier_wait<Senders::cluster>(arrived, phase)
//
// Numbers may arrive before they are expected. A block returns only when all that is sent to it has arrived;
// one that has sent may return at once.
//
// source  PTX ISA, 9.7.9.12 (st.async)
#pragma once

#include "cluster.hpp"
#include "mbarrier.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_NATIVE

/// Writes a number of 4 bytes to the same place in the shared memory of the block with this rank, where the
/// same mbarrier counts it. st.async
__device__ __forceinline__ void store_async(int* to, int rank, int number, uint64_t* barrier) {
  if constexpr (kHasClusters) {
    asm volatile(
        "{\n"
        ".reg .b32 there, arrived;\n"
        "mapa.shared::cluster.u32 there, %0, %2;\n"
        "mapa.shared::cluster.u32 arrived, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [arrived];\n"
        "}" ::"r"(shared_address(to)),
        "r"(shared_address(barrier)), "r"(rank), "r"(number)
        : "memory");
  } else {
    __trap();
  }
}

#else

inline void store_async(int* to, int rank, int number, uint64_t* barrier,
                        CallSite where = CallSite::current()) {
  emulation::store_async(to, rank, number, barrier, where);
}

#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
