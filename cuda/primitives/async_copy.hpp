// Asynchronous copies from global to shared memory (cp.async, sm_80).
//
// A thread issues copies, commits them as a group, and waits until all but the latest few of its groups have
// landed. After the wait the issuing thread may read the copied bytes; the other threads of the block may
// read them after a barrier. A thread has to wait for all of its copies before it returns.
#pragma once

#include "kernel.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_NATIVE

/// Begins to copy 16 bytes, of which `source_bytes` (0..16) are read and the rest are zero. Both addresses
/// are 16-byte aligned. The copy bypasses the L1 cache.
__device__ __forceinline__ void async_copy16(void* shared, const void* global, int source_bytes = 16) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(global)), "r"(source_bytes)
               : "memory");
}

/// Closes the group of all copies since the last call; it may be empty.
__device__ __forceinline__ void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits for all groups but the latest `in_flight`.
template <int in_flight>
__device__ __forceinline__ void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(in_flight) : "memory");
}

#else

inline void async_copy16(void* shared, const void* global, int source_bytes = 16,
                         CallSite where = CallSite::current()) {
  emulation::copy_async(shared, global, source_bytes, where);
}

inline void async_commit() { emulation::commit_copies(); }

template <int in_flight>
void async_wait() {
  emulation::wait_for_copies(in_flight);
}

#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
