// Clusters of blocks that run at the same time and access each other's shared memory (sm_90). A kernel is
// launched in clusters with LaunchShape::in_clusters.
//
// Every block of a cluster has a rank, counted along x, then y, then z, and its shared memory is laid out as
// that of the others. Before a block accesses another one's, a barrier of the cluster has to show that the
// other block has begun and has written what is read; and a block must not return while another may still
// access its shared memory.
//
// A thread arrives at the cluster's barrier, and later waits there: what every thread has done before its
// arrival has then happened. All threads of the cluster take part each time. The emulation runs the blocks of
// a cluster in turns: shared memory of a block that has not begun or has returned cannot be accessed, and
// what has not been written is NaN. Stricter than PTX: no thread returns before the cluster's last barrier.
//
// source  PTX ISA, 9.7.13.3 (barrier.cluster), 9.7.9.23 (mapa), 10.12 (%cluster_ctarank)
#pragma once

#include "hopper.hpp"

#ifndef KVBOUND_CUDA_NATIVE
#include <kvbound/cuda/emulation/cluster.hpp>
#endif

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_NATIVE

/// The block's rank in its cluster; 0 of a block that is in none.
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank = 0;
  if constexpr (kHasClusters) {
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  } else {
    __trap();
  }
  return static_cast<int>(rank);
}

/// The number of blocks in the cluster.
__device__ __forceinline__ int cluster_size() {
  uint32_t size = 1;
  if constexpr (kHasClusters) {
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  } else {
    __trap();
  }
  return static_cast<int>(size);
}

/// The same place in the shared memory of the block with this rank, for loads, stores and atomics. mapa
template <class T>
__device__ __forceinline__ T* map_shared(T* shared, int rank) {
  T* there = nullptr;
  if constexpr (kHasClusters) {
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
  } else {
    __trap();
  }
  return there;
}

/// barrier.cluster.arrive.release
__device__ __forceinline__ void cluster_arrive() {
  if constexpr (kHasClusters) {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  } else {
    __trap();
  }
}

/// The same of a thread that has written nothing that other blocks read, or nothing since a barrier of the
/// block behind which another thread arrives with a fence: without the fence that its stores would wait at.
/// barrier.cluster.arrive.relaxed
__device__ __forceinline__ void cluster_arrive_relaxed() {
  if constexpr (kHasClusters) {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  } else {
    __trap();
  }
}

/// barrier.cluster.wait.acquire
__device__ __forceinline__ void cluster_wait() {
  if constexpr (kHasClusters) {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
  } else {
    __trap();
  }
}

#else

inline int cluster_rank() { return emulation::block_rank(emulation::this_thread()); }
inline int cluster_size() { return emulation::cluster_size(); }

template <class T>
T* map_shared(T* shared, int rank, CallSite where = CallSite::current()) {
  return static_cast<T*>(emulation::map_shared(shared, rank, where));
}

inline void cluster_arrive(CallSite where = CallSite::current()) { emulation::arrive_at_cluster(where); }
inline void cluster_arrive_relaxed(CallSite where = CallSite::current()) {
  emulation::arrive_at_cluster(where);
}
inline void cluster_wait(CallSite where = CallSite::current()) { emulation::wait_for_cluster(where); }

#endif

/// The cluster's barrier: every thread of the cluster arrives and waits.
#ifdef KVBOUND_CUDA_NATIVE
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
#else
inline void cluster_sync(CallSite where = CallSite::current()) {
  cluster_arrive(where);
  cluster_wait(where);
}
#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
