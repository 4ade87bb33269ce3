// Blocks that share a row of the work: those of a cluster, or one block alone. Rows follow each other along
// the grid's x axis.
#pragma once

#include <cstdint>

#include "cluster.hpp"
#include "kernel.hpp"
#include "reduction.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The barrier of a cluster in which only the first warp of each block has written what other blocks read, or
/// a barrier of the block has followed what others have written: the first warp's fence covers that, too. A
/// fence of every warp would wait for all of its stores.
__device__ __forceinline__ void cluster_sync_after_first_warp() {
  if (warp() == 0) {
    cluster_arrive();
  } else {
    cluster_arrive_relaxed();
  }
  cluster_wait();
}

/// The team of a block.
///
/// kBlocks  1: the block alone; more: those of its cluster
template <int kBlocks>
struct Team {
  static __device__ int64_t row() { return blockIdx.x / unsigned{kBlocks}; }
  /// The block's number in its team.
  static __device__ int rank() { return static_cast<int>(blockIdx.x % unsigned{kBlocks}); }
  /// The thread's number in its team, and how many threads there are.
  static __device__ int thread() {
    return rank() * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  }
  static __device__ int threads() { return kBlocks * static_cast<int>(blockDim.x); }

  /// The team's barrier: what any of its threads has written before it, all of them can read behind it.
  static __device__ void sync() {
    if constexpr (kBlocks > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }
  }

  /// The sums of numbers of each block, by pairs. All threads call it, and once more sync() before they
  /// return. Between what others read behind it and the call there is a barrier of the block: here a block
  /// alone has none.
  ///
  /// own       the block's, of each thread the same
  /// of_block  [2, kCount], shared memory, which other blocks read
  /// turn      which of the two rows is next; it goes on through all calls
  template <int kCount, class Number>
  static __device__ void sum(Number (&own)[kCount], Number* of_block, int& turn) {
    if constexpr (kBlocks > 1) {
      Number* const mine = of_block + turn * kCount;
      turn ^= 1;
      for (int i = 0; threadIdx.x == 0 && i < kCount; ++i) mine[i] = own[i];
      cluster_sync_after_first_warp();
#pragma unroll
      for (int i = 0; i < kCount; ++i) own[i] = warp_sum<kBlocks>(map_shared(mine, lane() % kBlocks)[i]);
    }
  }

  /// The smallest number of any thread. All threads call it, once.
  ///
  /// least_of  [warps + 1], shared memory: of each warp, and of the block, which other blocks read
  static __device__ uint64_t minimum(uint64_t own, uint64_t* least_of) {
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
};

/// So many teams, each of kBlocks blocks of so many threads.
template <int kBlocks>
LaunchShape teams(int64_t rows, int64_t threads, int64_t shared, Stream stream,
                  CallSite where = CallSite::current()) {
  const LaunchShape shape(extent(kBlocks * rows), extent(threads), shared, stream, where);
  return kBlocks > 1 ? shape.in_clusters(extent(kBlocks)) : shape;
}

/// The blocks of a cluster that share a long row.
inline constexpr int kTeamBlocks = 8;

/// Calls launch_teams.operator()<kBlocks>() for teams of kBlocks: kTeamBlocks, if this device has clusters
/// and rows have more entries than one block should have, else 1.
template <class LaunchTeams>
void launch_by_length(int64_t length, int64_t most_of_one_block, const LaunchTeams& launch_teams) {
  if (length > most_of_one_block && device().has_clusters) {
    launch_teams.template operator()<kTeamBlocks>();
  } else {
    launch_teams.template operator()<1>();
  }
}

/// Entries that one block sorts or selects from alone: those of a team would wait for each other more than
/// work.
inline constexpr int64_t kShortRow = 4096;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
