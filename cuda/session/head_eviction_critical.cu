// CriticalKV's evictions during decoding.
#include <kvbound/cuda/eviction/cluster_selection.hpp>
#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/loads_first.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "eviction_choice.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace eviction_choice;
using radix_selection::kNoRank;

static_assert(kThreads == radix_selection::kThreads);

constexpr int64_t kMostSlots = kMostScores + 8;  // with room for the entry that enters, by whole sectors
constexpr int64_t kMostRanks = cluster_selection::kMostColumns + 8;  // that a cluster has shared memory for
constexpr int kRankBits = 32 + radix_selection::kIndexBits;
constexpr int kHeads = 4;  // query heads of a group, whose weights are summed at a time

struct Arguments {
  EvictArguments choice;
  const float* scores;  // [kv_heads, capacity]
  EvictionStages stages;
  int64_t group_size;
  float epsilon;
};

// Other blocks read candidates, masses and the last one of `least`.
template <int kBlocks, bool kKeepsRanks>
struct Shared {
  radix_selection::SearchShared search;
  uint64_t* ranks;  // [entries of a thread, kThreads], if they are kept
  int* candidates;  // [2]
  float* totals;    // [kHeads, kWarps]
  float* masses;    // [2, kHeads]
  uint64_t* least;  // [kWarps + 1]

  __host__ __device__ Shared(SharedMemory& memory, int64_t capacity)
      : search(memory, kBlocks),
        ranks(
            memory.array<uint64_t>(kKeepsRanks ? ceil_division(capacity, kBlocks * kThreads) * kThreads : 0)),
        candidates(memory.array<int>(2)),
        totals(memory.array<float>(kHeads * kWarps)),
        masses(memory.array<float>(2 * kHeads)),
        least(memory.array<uint64_t>(kWarps + 1)) {}
};

// One KV head's two stages. A thread of block b of the head has the slots 1024 b + t, and those that are
// multiples of 1024 kBlocks behind.
template <int kBlocks, bool kKeepsRanks>
struct Stages {
  const Arguments& p;
  const HeadEntries<kBlocks>& head;
  const Shared<kBlocks, kKeepsRanks>& shared;
  radix_selection::Exchange<kBlocks> exchange;
  int turn = 0;  // of the sums that blocks exchange

  __device__ Stages(const Arguments& arguments, const HeadEntries<kBlocks>& entries,
                    const Shared<kBlocks, kKeepsRanks>& memory)
      : p(arguments), head(entries), shared(memory), exchange(memory.search) {
    if constexpr (kKeepsRanks) {
      each_slot([&](int slot) {
        if (slot < head.entries) own_rank(slot) = rank_in_memory(slot);
      });
    }
  }

  // Calls work(slot) for the slots of the thread, by whole warps, some of which may be behind the last entry.
  template <class Work>
  __device__ void each_slot(const Work& work) const {
    for (int first = Team<kBlocks>::rank() * kThreads + warp() * 32; first < head.entries;
         first += kBlocks * kThreads) {
      work(first + lane());
    }
  }

  __device__ uint64_t& own_rank(int slot) const {
    return shared.ranks[slot / (kBlocks * kThreads) * kThreads + threadIdx.x];
  }
  __device__ uint64_t rank_in_memory(int slot) const {
    const int64_t position = head.position(slot);
    const float score = p.scores[head.g * p.choice.slots.capacity + slot];
    loads_first();
    if (head.is_always_kept(position)) return kNoRank;
    return radix_selection::rank_of(radix_selection::ordered_key(score), position);
  }
  // Entries are ordered by score, and equal scores by the smaller position; always-kept entries have no rank.
  __device__ uint64_t rank(int slot) const {
    if constexpr (kKeepsRanks) {
      return own_rank(slot);
    } else {
      return rank_in_memory(slot);
    }
  }

  __device__ int64_t candidates() {
    int count = 0;
    each_slot([&](int slot) { count += slot < head.entries && rank(slot) != kNoRank; });
    int counts[] = {block_sum<kWarps>(count, shared.search.warp_totals)};
    Team<kBlocks>::sum(counts, shared.candidates, turn);
    return counts[0];
  }

  // Whether the always-kept entries and those of at least this rank hold more than half of every query head's
  // attention. Sums of numbers that are not negative do not grow when one is left out, in single precision,
  // either: the entries with which this holds are the same for all larger sets.
  __device__ bool suffices(uint64_t least) {
    for (int64_t first = 0; first < p.group_size; first += kHeads) {
      const auto heads = static_cast<int>(min(int64_t{kHeads}, p.group_size - first));
      float masses[kHeads] = {};
      add_weights(head.g * p.group_size + first, heads, least, masses);
      sum_over_block(masses);
      Team<kBlocks>::sum(masses, shared.masses, turn);
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (i < heads && !(masses[i] > 0.5f)) return false;
      }
    }
    return true;
  }

  // Adds the weights of the thread's entries of at least this rank in successive query heads; kNoRank is
  // the largest rank of all.
  __device__ void add_weights(int64_t first_head, int heads, uint64_t least, float (&masses)[kHeads]) const {
    const int64_t capacity = p.choice.slots.capacity;
    each_slot([&](int slot) {
      if (slot >= head.entries || rank(slot) < least) return;
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (i < heads) masses[i] += p.stages.weights[(first_head + i) * capacity + slot];
      }
    });
  }

  // Sums the threads' numbers: those of a warp, then those of the warps, by pairs.
  __device__ void sum_over_block(float (&masses)[kHeads]) const {
    __syncthreads();  // all threads have read the previous totals
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      masses[i] = warp_sum(masses[i]);
      if (lane() == 0) shared.totals[i * kWarps + warp()] = masses[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kHeads; ++i) masses[i] = warp_sum(shared.totals[i * kWarps + lane()]);
  }

  // The rank that `count` candidates reach.
  __device__ uint64_t least_of(int64_t count) {
    const auto each = [&](const auto& add) {
      each_slot([&](int slot) {
        const uint64_t of_slot = slot < head.entries ? rank(slot) : kNoRank;
        add(of_slot != kNoRank, of_slot);
      });
    };
    return radix_selection::least_rank_of_blocks<kBlocks>(each, count, shared.search, exchange, kRankBits);
  }

  // The smallest rank in stage one, if `kept` candidates stay.
  __device__ uint64_t least_in_stage_one(int64_t kept) {
    if (p.stages.stage_one_counts) return least_of(p.stages.stage_one_counts[kept]);
    const uint64_t least = least_of(kept);
    if (least == kNoRank || !suffices(least)) return least;
    // The largest rank that still suffices, bit by bit; bits that no position has are set in all ranks.
    const int64_t newest = head.newest();
    uint64_t found = 0;
    for (int bit = kRankBits - 1; bit >= 0; --bit) {
      const uint64_t next = found | uint64_t{1} << bit;
      const bool is_in_all = bit < radix_selection::kIndexBits && newest >> bit == 0;
      if (is_in_all || next <= least || suffices(next)) found = next;
    }
    return max(found, least);
  }

  __device__ float stage_two(int64_t slot) const {
    float products = 0, attention = 0, norm = 0;
    for (int64_t first = 0; first < p.group_size; first += kHeads) {
      const auto heads = static_cast<int>(min(int64_t{kHeads}, p.group_size - first));
      float scores[kHeads], norms[kHeads];
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        const int64_t h = head.g * p.group_size + first + min(i, heads - 1);
        scores[i] = p.stages.running[h * p.choice.slots.capacity + slot];
        norms[i] = p.stages.norms[h * p.choice.slots.capacity + slot];
      }
      loads_first();
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (i >= heads) break;
        products += (scores[i] + p.epsilon) * norms[i];
        attention += scores[i];
        norm += norms[i];
      }
    }
    const auto group_size = static_cast<float>(p.group_size);
    return p.stages.gqa == GqaProduct::mean_of_products
               ? products / group_size
               : (attention / group_size + p.epsilon) * (norm / group_size);
  }
};

// The entry that one KV head evicts by two stages. The blocks of a cluster keep their entries' ranks, unless
// these are too many, and exchange numbers of candidates, of digits and, for an adaptive stage one, sums of
// weights.
//
//     ranks -> the number of candidates -> one digit after the other of the rank that stage one reaches
//           -> the least of the other candidates' stage-two scores
//
// grid       kBlocks kv_heads, in clusters of kBlocks
// block      1024
// shared     33,736 bytes; of kBlocks 8: 50,136, and 8,192 ceil(capacity / 8,192) for ranks
// registers  64 (sm_90a); 62, of kBlocks 8 26 (sm_80, where it is never launched)
// bytes      read: 12 for each KV head and entry, without kept ranks in each of up to ten passes, 8 for each
//            query head and entry; an adaptive stage one reads 4 group more for each entry, and 12 without
//            kept ranks, up to 32 times and once for each bit of the newest position, from the L2 cache;
//            written: 16 for each KV head; with a next entry also those of append_kernel
// FLOP       5 for each query head and entry; an adaptive stage one up to 60 more
template <int kBlocks, bool kKeepsRanks>
__global__ void __launch_bounds__(kThreads, 1) evict_critical_kernel(Arguments p) {
  begin_dependent_launch();
  SharedMemory memory;
  const Shared<kBlocks, kKeepsRanks> shared(memory, p.choice.slots.capacity);
  const HeadEntries<kBlocks> head(p.choice);
  Stages<kBlocks, kKeepsRanks> stages(p, head, shared);
  const int64_t candidates = stages.candidates(), leaving = head.entries - head.budget;
  uint64_t stage_one = kNoRank;
  if (leaving > 0 && candidates > leaving) stage_one = stages.least_in_stage_one(candidates - leaving);
  evict_least<kBlocks>(head, shared.least, [&](int64_t slot) {
    const uint64_t rank = stages.rank(static_cast<int>(slot));
    const bool may_go = rank < stage_one;  // always-kept entries have no rank
    return Candidate{may_go, radix_selection::index_of(rank), may_go ? stages.stage_two(slot) : 0};
  });
}

}  // namespace

void evict_critical(const EvictionRules& rules, const CacheSlots& slots, const float* scores,
                    const EvictionStages& stages, const std::optional<NewEntries>& next, int64_t query_heads,
                    const int64_t* newest, int64_t* evicted, int* status, Stream stream) {
  require_range("KV heads of the slots", slots.kv_heads, 0, INT32_MAX);
  require_range("capacity of the slots", slots.capacity, 0, kMostSlots);
  require_groups(query_heads, slots.kv_heads);
  const Arguments arguments{
      {rules, slots, newest, evicted, status, next.value_or(NewEntries{}), next.has_value()},
      scores,
      stages,
      query_heads / slots.kv_heads,
      static_cast<float>(stages.epsilon)};
  launch_by_length(slots.capacity, kThreads, [&]<int kBlocks> {
    const auto launch_kernel = [&]<bool kKeepsRanks> {
      const int64_t shared = shared_bytes<Shared<kBlocks, kKeepsRanks>>(slots.capacity);
      launch_dependent<evict_critical_kernel<kBlocks, kKeepsRanks>>(
          teams<kBlocks>(slots.kv_heads, kThreads, shared, stream), arguments);
    };
    constexpr bool kMayKeepRanks = kBlocks > 1;
    if (slots.capacity <= kMostRanks) {
      launch_kernel.template operator()<kMayKeepRanks>();
    } else {
      launch_kernel.template operator()<false>();
    }
  });
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
