// CriticalKV's evictions during decoding.
#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "eviction_choice.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace eviction_choice;
using radix_selection::kNoRank;
using radix_selection::kThreads;
using radix_selection::kWarps;

constexpr int kRankBits = 32 + radix_selection::kIndexBits;

struct Arguments {
  EvictArguments choice;
  const float* scores;  // [kv_heads, capacity]
  EvictionStages stages;
  int64_t group_size;
  float epsilon;
};

struct Shared {
  radix_selection::Shared selection;
  float* totals;    // [kWarps]
  uint64_t* least;  // [kWarps + 1]

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : selection(memory, 0),
        totals(memory.array<float>(kWarps)),
        least(memory.array<uint64_t>(kWarps + 1)) {}
};

// One KV head's two stages.
struct Stages {
  const Arguments& p;
  const HeadEntries<1>& head;
  const Shared& shared;

  // Entries are ordered by score, and equal scores by the smaller position; always-kept entries have no rank.
  __device__ uint64_t rank(int64_t slot) const {
    if (head.is_always_kept(slot)) return kNoRank;
    const float score = p.scores[head.g * p.choice.slots.capacity + slot];
    return radix_selection::rank_of(radix_selection::ordered_key(score), head.position(slot));
  }

  __device__ int64_t candidates() const {
    int count = 0;
    for (int64_t slot = threadIdx.x; slot < head.entries; slot += kThreads)
      count += !head.is_always_kept(slot);
    return block_sum<kWarps>(count, shared.selection.warp_totals);
  }

  // Whether the always-kept entries and those of at least this rank hold more than half of every query head's attention.
  // Sums of numbers that are not negative do not grow when one is left out, in single precision, either: the entries with
  // which this holds are the same for all larger sets.
  __device__ bool suffices(uint64_t least) const {
    for (int64_t i = 0; i < p.group_size; ++i) {
      const float* weights = p.stages.weights + (head.g * p.group_size + i) * p.choice.slots.capacity;
      float mass = 0;
      for (int64_t slot = threadIdx.x; slot < head.entries; slot += kThreads) {
        if (rank(slot) >= least) mass += weights[slot];  // kNoRank is the largest rank of all
      }
      if (!(block_sum<kWarps>(mass, shared.totals) > 0.5f)) return false;
    }
    return true;
  }

  // The smallest rank in stage one, if `kept` candidates stay.
  __device__ uint64_t least_in_stage_one(int64_t kept) const {
    const auto least_of = [&](int64_t count) {
      return radix_selection::least_rank([&](int64_t slot) { return rank(slot); }, head.entries, count,
                                         shared.selection);
    };
    if (p.stages.stage_one_counts) return least_of(p.stages.stage_one_counts[kept]);
    const uint64_t least = least_of(kept);
    if (least == kNoRank || !suffices(least)) return least;
    // The largest rank that still suffices, bit by bit.
    uint64_t found = 0;
    for (int bit = kRankBits - 1; bit >= 0; --bit) {
      const uint64_t next = found | uint64_t{1} << bit;
      if (next <= least || suffices(next)) found = next;
    }
    return max(found, least);
  }

  __device__ float stage_two(int64_t slot) const {
    float products = 0, attention = 0, norm = 0;
    for (int64_t h = head.g * p.group_size; h < (head.g + 1) * p.group_size; ++h) {
      const float score = p.stages.running[h * p.choice.slots.capacity + slot];
      const float of_head = p.stages.norms[h * p.choice.slots.capacity + slot];
      products += (score + p.epsilon) * of_head;
      attention += score;
      norm += of_head;
    }
    const auto group_size = static_cast<float>(p.group_size);
    return p.stages.gqa == GqaProduct::mean_of_products
               ? products / group_size
               : (attention / group_size + p.epsilon) * (norm / group_size);
  }
};

// The entry that one KV head evicts by two stages: a thread has the slots t, t + 1024, ...
//
// grid       kv_heads
// block      1024
// shared     33,304 bytes
// registers  64 (sm_90a and sm_80)
// bytes      read: 12 for each KV head and entry in each of up to six passes, 8 for each query head and entry; an adaptive
//            stage one reads 12 + 4 group for each entry up to 50 times, from the L2 cache; written: 16 for each KV head
// FLOP       5 for each query head and entry; an adaptive stage one up to 50 more
__global__ void __launch_bounds__(kThreads, 1) evict_critical_kernel(Arguments p) {
  SharedMemory memory;
  const Shared shared(memory);
  const HeadEntries<1> head(p.choice);
  const Stages stages{p, head, shared};
  const int64_t candidates = stages.candidates(), leaving = head.entries - head.budget;
  uint64_t stage_one = kNoRank;
  if (leaving > 0 && candidates > leaving) stage_one = stages.least_in_stage_one(candidates - leaving);
  evict_least<1>(head, shared.least, [&](int64_t slot) {
    const bool may_go = !head.is_always_kept(slot) && stages.rank(slot) < stage_one;
    return Candidate{may_go, may_go ? stages.stage_two(slot) : 0};
  });
}

}  // namespace

void evict_critical(const EvictionRules& rules, const CacheSlots& slots, const float* scores,
                    const EvictionStages& stages, int64_t query_heads, const int64_t* newest,
                    int64_t* evicted, int* status, Stream stream) {
  require_range("KV heads of the slots", slots.kv_heads, 0, INT32_MAX);
  require_range("capacity of the slots", slots.capacity, 0, kMostScores);
  require_groups(query_heads, slots.kv_heads);
  const Arguments arguments{{rules, slots, newest, evicted, status},
                            scores,
                            stages,
                            query_heads / slots.kv_heads,
                            static_cast<float>(stages.epsilon)};
  launch<evict_critical_kernel>({extent(slots.kv_heads), extent(kThreads), shared_bytes<Shared>(), stream},
                                arguments);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
