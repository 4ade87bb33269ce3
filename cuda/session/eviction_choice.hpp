// One KV head's choice of the entry that it evicts: what evict_kernel and
// evict_critical_kernel have in common.
#pragma once

#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/team.hpp>

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

/// Threads of a block.
inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;

/// The entries of the KV head that a block, or a cluster of kBlocks blocks, chooses from.
template <int kBlocks>
struct HeadEntries {
  const EvictArguments& p;
  int64_t g;
  int entries, budget;
  int64_t first_recent;  ///< position

  __device__ explicit HeadEntries(const EvictArguments& arguments)
      : p(arguments),
        g(Team<kBlocks>::row()),
        entries(static_cast<int>(p.slots.entries[g])),
        budget(static_cast<int>(p.rules.budgets[g])) {
    const int64_t recent = p.rules.fills_recent ? budget - p.rules.sinks : p.rules.recent;
    first_recent = newest() - recent + 1;
  }

  __device__ int64_t newest() const { return p.newest[g]; }  ///< position
  __device__ int64_t position(int64_t slot) const { return p.slots.positions[g * p.slots.capacity + slot]; }
  __device__ bool is_always_kept(int64_t at) const { return at < p.rules.sinks || at >= first_recent; }
};

/// What decides whether an entry is evicted; of one that may not go, neither position nor score counts.
struct Candidate {
  bool may_go;
  int64_t position;
  float score;
};

/// Evicts, if the head is over its budget, the entry of smallest score among the candidates(slot) that may
/// go; ties: the larger position. The warp that has it appends the next step's entry in its place; if none
/// goes, the head's first warp appends it. All threads call it, once; every slot is asked for by one thread.
///
/// least_of  [kWarps + 1], as Team::minimum takes it
template <int kBlocks, class Candidates>
__device__ void evict_least(const HeadEntries<kBlocks>& head, uint64_t* least_of,
                            const Candidates& candidates) {
  constexpr uint64_t kNone = ~uint64_t{0};
  const int block = Team<kBlocks>::rank();
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
  const uint64_t chosen = Team<kBlocks>::minimum(least, least_of);
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
