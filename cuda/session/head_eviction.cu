#include "head_eviction.hpp"

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/loads_first.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "eviction_choice.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace eviction_choice;

constexpr int kUpdateThreads = 128;
// The query heads whose numbers are loaded before any is stored: a store would delay
// the loads that follow it.
constexpr int kHeadsAtATime = 4;

struct UpdateArguments {
  StepScores step;
  int64_t group_size = 0;
  bool accumulates = false, averages = false;
  UpdatedScores updated;
};

// The log-sum-exps of kHeadsAtATime successive query heads, by one load where there are so many side by side.
struct LogSumExps {
  const float* from;
  bool are_fours;
  float4 four = {};

  __device__ LogSumExps(const StepScores& step, int64_t first, int64_t heads)
      : from(step.log_sum_exp + first), are_fours(step.log_sum_exp && heads == 4 && first % 4 == 0) {
    static_assert(kHeadsAtATime == 4);
    if (are_fours) four = *reinterpret_cast<const float4*>(from);
  }
  __device__ float of(int i) const {
    if (!are_fours) return from[i];
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
  }
};

// Updates the running scores of one slot of a KV head and returns their sum or mean. Where there are fewer
// heads than are loaded at a time, the last one's numbers are loaded again, and where nothing is added, the
// step's: a load that waited for a condition would wait for the loads before it.
__device__ float updated_score(const UpdateArguments& p, const CacheSlots& slots, int64_t g, int64_t slot) {
  const bool adds = p.accumulates && slot != slots.newest[g];
  const int64_t of_group = g * slots.capacity + slot;
  const float* const numbers = p.step.contributions ? p.step.contributions : p.step.logits;
  const float* const added = p.accumulates ? p.updated.running : numbers;
  const float votes = p.step.log_votes ? p.step.log_votes[of_group] : 0;
  float sum = 0;
  for (int64_t first = g * p.group_size; first < (g + 1) * p.group_size; first += kHeadsAtATime) {
    const int64_t heads = min(int64_t{kHeadsAtATime}, (g + 1) * p.group_size - first);
    const LogSumExps log_sum_exp(p.step, first, heads);
    float own[kHeadsAtATime], before[kHeadsAtATime], score[kHeadsAtATime];
#pragma unroll
    for (int i = 0; i < kHeadsAtATime; ++i) {
      const int64_t place = (first + min(int64_t{i}, heads - 1)) * slots.capacity + slot;
      own[i] = numbers[place];
      before[i] = added[place];
    }
    loads_first();
    if (!p.step.contributions) {
#pragma unroll
      for (int i = 0; i < kHeadsAtATime; ++i) {
        own[i] = expf(own[i] + votes - log_sum_exp.of(min(i, static_cast<int>(heads) - 1)));
      }
    }
#pragma unroll
    for (int i = 0; i < kHeadsAtATime; ++i) score[i] = adds ? before[i] + own[i] : own[i];
#pragma unroll
    for (int i = 0; i < kHeadsAtATime; ++i) {
      if (i >= heads) break;
      const int64_t place = (first + i) * slots.capacity + slot;
      p.updated.running[place] = score[i];
      if (p.updated.weights) p.updated.weights[place] = own[i];
      sum += score[i];
    }
  }
  const float reduced = p.averages ? sum / static_cast<float>(p.group_size) : sum;
  if (p.updated.reduced) p.updated.reduced[of_group] = reduced;
  return reduced;
}

// The running scores of one slot for all query heads of a KV head, and their sum or
// mean: a thread has one slot.
//
// grid       (ceil(capacity / 128), kv_heads)
// block      128; no shared memory
// registers  40 (sm_90a and sm_80)
// bytes      read: up to 8 for each query head and entry, and 4 for its votes; written: 4 for each query head
//            and entry, 4 for each KV head and entry
// FLOP       4 and an exponential for each query head and entry
__global__ void __launch_bounds__(kUpdateThreads) update_scores_kernel(UpdateArguments p, CacheSlots slots) {
  begin_dependent_launch();
  const int64_t g = row_of_block();
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kUpdateThreads + threadIdx.x;
  if (g >= slots.kv_heads || slot >= slots.entries[g]) return;
  updated_score(p, slots, g, slot);
}

struct EvictShared {
  uint64_t* least;  // [kWarps + 1]

  __host__ __device__ explicit EvictShared(SharedMemory& memory)
      : least(memory.array<uint64_t>(kWarps + 1)) {}
};

// One KV head's running scores, and the entry that it evicts: thread t of block b has the slots 1024 b + t,
// and those that are multiples of 1024 kBlocks behind.
//
// grid       kBlocks kv_heads, in clusters of kBlocks
// block      1024
// shared     264 bytes
// registers  64 (sm_90a and sm_80)
// bytes      read: 8 for each KV head and entry; written: 16 for each KV head; with an update also its bytes,
//            without the scores of the KV heads; with a next entry also those of append_kernel
// FLOP       those of the update
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    evict_kernel(EvictArguments p, UpdateArguments update, bool updates) {
  begin_dependent_launch();
  SharedMemory memory;
  const EvictShared shared(memory);
  const HeadEntries<kBlocks> head(p);
  evict_least<kBlocks>(head, shared.least, [&](int64_t slot) {
    const int64_t position = head.position(slot);
    const float score = updates ? updated_score(update, p.slots, head.g, slot) : 0;
    return Candidate{!head.is_always_kept(position), position, score};
  });
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

UpdateArguments arguments_of(const ScoreUpdate& update, const CacheSlots& slots, int64_t query_heads) {
  require_groups(query_heads, slots.kv_heads);
  return {update.step, query_heads / slots.kv_heads, accumulates(update.rule),
          update.reduction == GroupReduction::mean, update.updated};
}

}  // namespace

void update_scores(const ScoreUpdate& update, const CacheSlots& slots, int64_t query_heads, Stream stream) {
  require_valid(slots);
  const UpdateArguments arguments = arguments_of(update, slots, query_heads);
  if (slots.capacity == 0) return;
  launch_dependent<update_scores_kernel>(
      {extent_of_rows(ceil_division(slots.capacity, kUpdateThreads), slots.kv_heads), extent(kUpdateThreads),
       0, stream},
      arguments, slots);
}

void evict(const EvictionRules& rules, const CacheSlots& slots, const std::optional<ScoreUpdate>& update,
           const std::optional<NewEntries>& next, int64_t query_heads, const int64_t* newest,
           int64_t* evicted, int* status, Stream stream) {
  require_valid(slots);
  if (slots.kv_heads == 0) return;
  const UpdateArguments of_update = update ? arguments_of(*update, slots, query_heads) : UpdateArguments{};
  const EvictArguments arguments{rules,           slots, newest, evicted, status, next.value_or(NewEntries{}),
                                 next.has_value()};
  launch_by_length(slots.capacity, kThreads, [&]<int kBlocks> {
    launch_dependent<evict_kernel<kBlocks>>(
        teams<kBlocks>(slots.kv_heads, kThreads, shared_bytes<EvictShared>(), stream), arguments, of_update,
        update.has_value());
  });
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
