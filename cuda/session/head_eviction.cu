#include "head_eviction.hpp"

#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kUpdateThreads = 128;
constexpr int kEvictThreads = 512;
constexpr int kEvictWarps = kEvictThreads / 32;

struct UpdateArguments {
  StepScores step;
  CacheSlots slots;
  int64_t group_size;
  bool accumulates, averages;
  float* running;
  float* reduced;
};

__device__ float score_of(const StepScores& step, int64_t head, int64_t place, int64_t vote) {
  if (step.contributions) return step.contributions[place];
  const float votes = step.log_votes ? step.log_votes[vote] : 0;
  return expf(step.logits[place] + votes - step.log_sum_exp[head]);
}

// The running scores of one slot for all query heads of a KV head, and their sum or mean: a thread has one slot.
//
// grid       (ceil(capacity / 128), kv_heads)
// block      128; no shared memory
// registers  32 (sm_90a and sm_80)
// bytes      read: up to 8 for each query head and entry, and 4 for its votes; written: 4 for each query head and entry,
//            4 for each KV head and entry
// FLOP       4 and an exponential for each query head and entry
__global__ void __launch_bounds__(kUpdateThreads) update_scores_kernel(UpdateArguments p) {
  const int64_t g = blockIdx.y;
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kUpdateThreads + threadIdx.x;
  if (slot >= p.slots.entries[g]) return;
  const bool adds = p.accumulates && slot != p.slots.newest[g];
  float sum = 0;
  for (int64_t h = g * p.group_size; h < (g + 1) * p.group_size; ++h) {
    const int64_t place = h * p.slots.capacity + slot;
    const float own = score_of(p.step, h, place, g * p.slots.capacity + slot);
    const float score = adds ? p.running[place] + own : own;
    p.running[place] = score;
    sum += score;
  }
  p.reduced[g * p.slots.capacity + slot] = p.averages ? sum / static_cast<float>(p.group_size) : sum;
}

struct EvictArguments {
  EvictionRules rules;
  CacheSlots slots;
  const float* scores;
  int64_t newest;
  int64_t* evicted;
  int* status;
};

struct EvictShared {
  uint64_t* least;  // [kEvictWarps]

  __host__ __device__ explicit EvictShared(SharedMemory& memory)
      : least(memory.array<uint64_t>(kEvictWarps)) {}
};

// Orders entries as they are evicted: smaller scores first, of equal ones the larger position. No two entries are equal.
__device__ uint64_t order_of(uint32_t key, int64_t position) {
  return static_cast<uint64_t>(key) << 32 | (0xffffffffu - static_cast<uint32_t>(position));
}

__device__ uint64_t block_least(uint64_t mine, uint64_t* by_warp) {
  for (int distance = 16; distance > 0; distance /= 2) {
    mine = min(mine, __shfl_xor_sync(kAllLanes, mine, distance));
  }
  if (lane() == 0) by_warp[warp()] = mine;
  __syncthreads();
  for (int w = 0; w < kEvictWarps; ++w) mine = min(mine, by_warp[w]);
  return mine;
}

// The entry that one KV head evicts: a thread has the slots t, t + 512, ...
//
// grid       kv_heads
// block      512
// shared     128 bytes
// registers  32 (sm_90a and sm_80)
// bytes      read: 12 for each KV head and entry; written: 16 for each KV head; no FLOP
__global__ void __launch_bounds__(kEvictThreads) evict_kernel(EvictArguments p) {
  constexpr uint64_t kNone = ~uint64_t{0};
  SharedMemory memory;
  const EvictShared shared(memory);
  const int64_t g = blockIdx.x;
  const int64_t entries = p.slots.entries[g];
  const int64_t budget = p.rules.budgets[g];
  const int64_t recent = p.rules.fills_recent ? budget - p.rules.sinks : p.rules.recent;
  uint64_t least = kNone;
  int64_t slot_of_least = -1;
  for (int64_t slot = threadIdx.x; slot < entries; slot += kEvictThreads) {
    const int64_t position = p.slots.positions[g * p.slots.capacity + slot];
    if (position < p.rules.sinks || position > p.newest - recent) continue;
    const uint32_t key = p.scores ? radix_selection::ordered_key(p.scores[g * p.slots.capacity + slot]) : 1;
    if (key == radix_selection::kNanKey) *p.status = 1;  // several threads may write, all of them 1
    const uint64_t order = order_of(key, position);
    if (order >= least) continue;
    least = order;
    slot_of_least = slot;
  }
  const uint64_t chosen = block_least(least, shared.least);
  const bool evicts = entries > budget && chosen != kNone;
  if (!evicts && threadIdx.x == 0) p.evicted[g] = -1;
  if (!evicts || least != chosen) return;
  p.slots.free[g] = slot_of_least;
  p.evicted[g] = p.slots.positions[g * p.slots.capacity + slot_of_least];
}

void require_valid(const CacheSlots& slots) {
  require_range("KV heads of the slots", slots.kv_heads, 0, INT32_MAX);
  require_range("capacity of the slots", slots.capacity, 0, INT32_MAX);
}

bool accumulates(StepUpdate update) {
  switch (update) {
    case StepUpdate::accumulate:
      return true;
    case StepUpdate::none:
    case StepUpdate::replace:
      return false;
  }
  return false;
}

}  // namespace

void update_scores(const StepScores& step, const CacheSlots& slots, int64_t query_heads, StepUpdate update,
                   GroupReduction reduction, float* running, float* reduced, Stream stream) {
  require_valid(slots);
  require_groups(query_heads, slots.kv_heads);
  if (slots.capacity == 0) return;
  const UpdateArguments arguments{
      step,    slots,  query_heads / slots.kv_heads, accumulates(update), reduction == GroupReduction::mean,
      running, reduced};
  launch({extent(ceil_division(slots.capacity, kUpdateThreads), slots.kv_heads), extent(kUpdateThreads), 0,
          stream},
         update_scores_kernel, arguments);
}

void evict(const EvictionRules& rules, const CacheSlots& slots, const float* scores, int64_t newest,
           int64_t* evicted, int* status, Stream stream) {
  require_valid(slots);
  if (slots.kv_heads == 0) return;
  const EvictArguments arguments{rules, slots, scores, newest, evicted, status};
  launch({extent(slots.kv_heads), extent(kEvictThreads), shared_bytes<EvictShared>(), stream}, evict_kernel,
         arguments);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
