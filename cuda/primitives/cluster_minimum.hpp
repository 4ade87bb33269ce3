// The smallest number of all threads of a block, or of a cluster of blocks.
#pragma once

#include "cluster.hpp"
#include "kernel.hpp"
#include "reduction.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The cluster's barrier where no warp but a block's first one has written what other blocks read: the fence
/// of a warp waits for all of its stores.
__device__ __forceinline__ void cluster_sync_after_first_warp() {
  if (warp() == 0) {
    cluster_arrive();
  } else {
    cluster_arrive_relaxed();
  }
  cluster_wait();
}

/// The smallest number of any thread of the cluster. All its threads call it, once.
///
/// kBlocks   of the cluster; 1: without clusters
/// least_of  [warps + 1], shared memory: of each warp, and of the block, which other blocks read
template <int kBlocks>
__device__ uint64_t cluster_minimum(uint64_t own, uint64_t* least_of) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  own = warp_min(own);
  if (lane() == 0) least_of[warp()] = own;
  __syncthreads();
  own = warp_min(lane() < warps ? least_of[lane()] : own);
  if constexpr (kBlocks > 1) {
    if (threadIdx.x == 0) least_of[warps] = own;
    cluster_sync_after_first_warp();
    own = warp_min<kBlocks>(*map_shared(least_of + warps, lane() % kBlocks));
    cluster_arrive_relaxed();
    cluster_wait();  // no block returns while others read its shared memory
  }
  return own;
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
