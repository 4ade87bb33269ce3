// Copies of many bytes by one thread (cp.async.bulk, sm_90). Addresses and numbers of bytes are multiples of 16.
//
// A load is complete when its bytes have been counted by the mbarrier, which has to expect them. A store reads shared
// memory that was made visible by fence_async_proxy; the issuing thread commits its stores in groups, and waits for
// groups: until their sources have been read, so that shared memory may be written again or the thread may return, or
// until they have been written, too.
//
// source  PTX ISA, 9.7.9.25.4 (non-tensor bulk copies)
#pragma once

#include "mbarrier.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_NATIVE

/// Begins to copy from global to shared memory.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, int bytes, uint64_t* barrier) {
  if constexpr (kIsHopper) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(shared)),
        "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
  } else {
    __trap();
  }
}

/// Begins to copy from shared to global memory.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, int bytes) {
  if constexpr (kIsHopper) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(global)),
        "r"(shared_address(shared)), "r"(bytes)
        : "memory");
  } else {
    __trap();
  }
}

/// Closes the group of this thread's stores since the last call; it may be empty.
__device__ __forceinline__ void bulk_commit() {
  if constexpr (kIsHopper) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  } else {
    __trap();
  }
}

/// Waits until all groups but the latest `in_flight` have read shared memory.
template <int in_flight>
__device__ __forceinline__ void bulk_wait_read() {
  if constexpr (kIsHopper) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(in_flight) : "memory");
  } else {
    __trap();
  }
}

/// Waits until all groups but the latest `in_flight` have written global memory.
template <int in_flight>
__device__ __forceinline__ void bulk_wait() {
  if constexpr (kIsHopper) {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(in_flight) : "memory");
  } else {
    __trap();
  }
}

#else

inline void bulk_load(void* shared, const void* global, int bytes, uint64_t* barrier,
                      CallSite where = CallSite::current()) {
  emulation::load_bulk(shared, global, bytes, barrier, where);
}

inline void bulk_store(void* global, const void* shared, int bytes, CallSite where = CallSite::current()) {
  emulation::bulk_stores().issue(global, shared, bytes, where);
}

inline void bulk_commit() { emulation::bulk_stores().commit(); }

template <int in_flight>
void bulk_wait_read() {
  emulation::bulk_stores().wait(in_flight, true);
}

template <int in_flight>
void bulk_wait() {
  emulation::bulk_stores().wait(in_flight, false);
}

#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
