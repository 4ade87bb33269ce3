// One KV head's choice of the entry that it evicts: what evict_kernel and
// evict_critical_kernel have in common.
#pragma once

#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/primitives/cluster_minimum.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>

#include "entry_rows.hpp"
#include "head_eviction.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace eviction_choice {

struct EvictArguments {
  EvictionRules rules;
  CacheSlots slots;
  const int64_t* newest;  ///< [kv_heads]: positions
  int64_t* evicted;
  int* status;
  NewEntries next;
  bool appends;  ///< next
};

/// Threads of a block; and the blocks of a cluster that share a KV head, on compute capability 9.0, if it may
/// have more entries than one block has threads.
inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kClusterBlocks = 8;

/// The entries of the KV head that a block, or a cluster of kBlocks blocks, chooses from.
template <int kBlocks>
struct HeadEntries {
  const EvictArguments& p;
  int64_t g;
  int entries, budget;
  int64_t first_recent;  ///< position

  __device__ explicit HeadEntries(const EvictArguments& arguments)
      : p(arguments),
        g(blockIdx.x / kBlocks),
        entries(static_cast<int>(p.slots.entries[g])),
        budget(static_cast<int>(p.rules.budgets[g])) {
    const int64_t recent = p.rules.fills_recent ? budget - p.rules.sinks : p.rules.recent;
    first_recent = newest() - recent + 1;
  }

  __device__ int64_t newest() const { return p.newest[g]; }  ///< position
  __device__ int64_t position(int64_t slot) const { return p.slots.positions[g * p.slots.capacity + slot]; }
  __device__ bool is_always_kept(int64_t at) const { return at < p.rules.sinks || at >= first_recent; }
};

/// Calls launch_blocks.operator()<kBlocks>(shape) for blocks of kThreads, of which kBlocks, a
/// cluster, have a KV head.
template <class LaunchBlocks>
void launch_heads(const CacheSlots& slots, Stream stream, const LaunchBlocks& launch_blocks) {
  const auto shape = [&](int of_head) {
    return LaunchShape(extent(slots.kv_heads * of_head), extent(kThreads), 0, stream);
  };
  if (slots.capacity > kThreads && device().has_clusters) {
    launch_blocks.template operator()<kClusterBlocks>(
        shape(kClusterBlocks).in_clusters(extent(kClusterBlocks)));
  } else {
    launch_blocks.template operator()<1>(shape(1));
  }
}

/// The block's rank among the kBlocks of its KV head.
template <int kBlocks>
__device__ int block_of_head() {
  return kBlocks > 1 ? static_cast<int>(blockIdx.x) % kBlocks : 0;
}

/// What decides whether an entry is evicted; of one that may not go, neither position nor score counts.
struct Candidate {
  bool may_go;
  int64_t position;
  float score;
};

/// The sums of numbers of each block of the cluster, by pairs. All threads of the cluster call it.
///
/// of_block  [2, kCount], shared memory, which other blocks read
/// turn      which of the two rows is next; it goes on through all calls
template <int kBlocks, int kCount, class Number>
__device__ void sum_of_blocks(Number (&own)[kCount], Number* of_block, int& turn) {
  if constexpr (kBlocks > 1) {
    Number* const mine = of_block + turn * kCount;
    turn ^= 1;
    for (int i = 0; threadIdx.x == 0 && i < kCount; ++i) mine[i] = own[i];
    cluster_sync_after_first_warp();
#pragma unroll
    for (int i = 0; i < kCount; ++i) own[i] = warp_sum<kBlocks>(map_shared(mine, lane() % kBlocks)[i]);
  }
}

/// Evicts, if the head is over its budget, the entry of smallest score among the candidates(slot) that may
/// go; ties: the larger position. The warp that has it appends the next step's entry in its place; if none
/// goes, the head's first warp appends it. All threads call it, once; every slot is asked for by one thread.
///
/// least_of  [kWarps + 1], as cluster_minimum takes it
template <int kBlocks, class Candidates>
__device__ void evict_least(const HeadEntries<kBlocks>& head, uint64_t* least_of,
                            const Candidates& candidates) {
  constexpr uint64_t kNone = ~uint64_t{0};
  const int block = block_of_head<kBlocks>();
  const EvictArguments& p = head.p;
  uint64_t least = kNone;
  int slot_of_least = -1;
  for (int64_t slot = block * kThreads + static_cast<int>(threadIdx.x); slot < head.entries;
       slot += kBlocks * kThreads) {
    const Candidate candidate = candidates(slot);
    if (!candidate.may_go) continue;
    const uint32_t key = radix_selection::ordered_key(candidate.score);
    if (key == radix_selection::kNanKey) *p.status = 1;  // several threads may write, all of them 1
    // No two entries have the same position, so none is of the same order as another.
    const uint64_t order = static_cast<uint64_t>(key) << 32 | ~static_cast<uint32_t>(candidate.position);
    if (order >= least) continue;
    least = order;
    slot_of_least = static_cast<int>(slot);
  }
  const uint64_t chosen = cluster_minimum<kBlocks>(least, least_of);
  const bool evicts = head.entries > head.budget && chosen != kNone;
  const bool decides = evicts ? least == chosen : block == 0 && threadIdx.x == 0;
  if (decides) {
    p.evicted[head.g] = evicts ? int64_t{~static_cast<uint32_t>(chosen)} : -1;
    if (evicts && !p.appends) p.slots.free[head.g] = slot_of_least;
  }
  const unsigned deciding = __ballot_sync(kAllLanes, decides);
  if (!p.appends || deciding == 0) return;
  const int slot = __shfl_sync(kAllLanes, slot_of_least, __ffs(static_cast<int>(deciding)) - 1);
  EntryRows(p.next, head.g).put(p.slots, evicts ? slot : head.entries, head.entries);
}

}  // namespace eviction_choice
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
