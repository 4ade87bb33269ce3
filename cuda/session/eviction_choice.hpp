// One KV head's choice of the entry that it evicts: what evict_kernel and evict_critical_kernel have in common.
#pragma once

#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/primitives/cluster.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>

#include "head_eviction.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace eviction_choice {

struct EvictArguments {
  EvictionRules rules;
  CacheSlots slots;
  const int64_t* newest;  ///< position
  int64_t* evicted;
  int* status;
};

/// The entries of the KV head that a block, or a cluster of kBlocks blocks, chooses from.
template <int kBlocks>
struct HeadEntries {
  const EvictArguments& p;
  int64_t g, entries, budget, recent;

  __device__ explicit HeadEntries(const EvictArguments& arguments)
      : p(arguments), g(blockIdx.x / kBlocks), entries(p.slots.entries[g]), budget(p.rules.budgets[g]) {
    recent = p.rules.fills_recent ? budget - p.rules.sinks : p.rules.recent;
  }

  __device__ int64_t position(int64_t slot) const { return p.slots.positions[g * p.slots.capacity + slot]; }
  __device__ bool is_always_kept(int64_t slot) const {
    const int64_t at = position(slot);
    return at < p.rules.sinks || at > *p.newest - recent;
  }
};

/// What decides whether an entry is evicted.
struct Candidate {
  bool may_go;
  float score;
};

/// The smallest number of any block of the cluster, of which `own` is this block's. All threads of the cluster call it, once.
///
/// of_block  shared memory for a number, which other blocks read
template <int kBlocks>
__device__ uint64_t least_of_blocks(uint64_t own, uint64_t* of_block) {
  if constexpr (kBlocks > 1) {
    if (threadIdx.x == 0) *of_block = own;
    cluster_sync();
    for (int rank = 0; rank < kBlocks; ++rank) own = min(own, *map_shared(of_block, rank));
    cluster_sync();  // no block returns while others read its shared memory
  }
  return own;
}

/// Evicts, if the head is over its budget, the entry of smallest score among the candidates(slot) that may go; ties: the
/// larger position. All threads call it, once; every slot is asked for by one thread.
///
/// least_of  [warps + 1], shared memory: of each warp, and of the block
template <int kBlocks, class Candidates>
__device__ void evict_least(const HeadEntries<kBlocks>& head, uint64_t* least_of,
                            const Candidates& candidates) {
  constexpr uint64_t kNone = ~uint64_t{0};
  const int64_t block = kBlocks > 1 ? blockIdx.x % kBlocks : 0;
  const EvictArguments& p = head.p;
  uint64_t least = kNone;
  int64_t slot_of_least = -1;
  for (int64_t slot = block * blockDim.x + threadIdx.x; slot < head.entries; slot += kBlocks * blockDim.x) {
    const Candidate candidate = candidates(slot);
    if (!candidate.may_go) continue;
    const uint32_t key = radix_selection::ordered_key(candidate.score);
    if (key == radix_selection::kNanKey) *p.status = 1;  // several threads may write, all of them 1
    // No two entries have the same position, so none is of the same order as another.
    const uint64_t order =
        static_cast<uint64_t>(key) << 32 | (0xffffffffu - static_cast<uint32_t>(head.position(slot)));
    if (order >= least) continue;
    least = order;
    slot_of_least = slot;
  }
  uint64_t chosen = warp_min(least);
  if (lane() == 0) least_of[warp()] = chosen;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / 32; ++w) chosen = min(chosen, least_of[w]);
  chosen = least_of_blocks<kBlocks>(chosen, least_of + blockDim.x / 32);
  const bool evicts = head.entries > head.budget && chosen != kNone;
  if (!evicts && block == 0 && threadIdx.x == 0) p.evicted[head.g] = -1;
  if (!evicts || least != chosen) return;
  p.slots.free[head.g] = slot_of_least;
  p.evicted[head.g] = head.position(slot_of_least);
}

}  // namespace eviction_choice
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
