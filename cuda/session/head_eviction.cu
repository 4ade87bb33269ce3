#include "head_eviction.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "eviction_choice.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace eviction_choice;

constexpr int kUpdateThreads = 128;
constexpr int kEvictThreads = 512;
constexpr int kEvictWarps = kEvictThreads / 32;

struct UpdateArguments {
  StepScores step;
  CacheSlots slots;
  int64_t group_size;
  bool accumulates, averages;
  UpdatedScores updated;
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
// registers  40 (sm_90a and sm_80)
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
    const float score = adds ? p.updated.running[place] + own : own;
    p.updated.running[place] = score;
    if (p.updated.weights) p.updated.weights[place] = own;
    sum += score;
  }
  p.updated.reduced[g * p.slots.capacity + slot] = p.averages ? sum / static_cast<float>(p.group_size) : sum;
}

struct EvictShared {
  uint64_t* least;  // [kEvictWarps]

  __host__ __device__ explicit EvictShared(SharedMemory& memory)
      : least(memory.array<uint64_t>(kEvictWarps)) {}
};

// The entry that one KV head evicts: a thread has the slots t, t + 512, ...
//
// grid       kv_heads
// block      512
// shared     128 bytes
// registers  30 (sm_90a), 32 (sm_80)
// bytes      read: 12 for each KV head and entry; written: 16 for each KV head; no FLOP
__global__ void __launch_bounds__(kEvictThreads) evict_kernel(EvictArguments p) {
  SharedMemory memory;
  const EvictShared shared(memory);
  const HeadEntries head(p);
  evict_least(
      head, shared.least, [&](int64_t slot) { return !head.is_always_kept(slot); },
      [&](int64_t slot) { return head.key(slot); });
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
                   GroupReduction reduction, const UpdatedScores& updated, Stream stream) {
  require_valid(slots);
  require_groups(query_heads, slots.kv_heads);
  if (slots.capacity == 0) return;
  const UpdateArguments arguments{
      step,   slots, query_heads / slots.kv_heads, accumulates(update), reduction == GroupReduction::mean,
      updated};
  launch({extent(ceil_division(slots.capacity, kUpdateThreads), slots.kv_heads), extent(kUpdateThreads), 0,
          stream},
         update_scores_kernel, arguments);
}

void evict(const EvictionRules& rules, const CacheSlots& slots, const float* scores, const int64_t* newest,
           int64_t* evicted, int* status, Stream stream) {
  require_valid(slots);
  if (slots.kv_heads == 0) return;
  const EvictArguments arguments{rules, slots, scores, newest, evicted, status};
  launch({extent(slots.kv_heads), extent(kEvictThreads), shared_bytes<EvictShared>(), stream}, evict_kernel,
         arguments);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
