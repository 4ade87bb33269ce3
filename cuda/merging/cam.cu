#include "cam.hpp"

#include <cmath>
#include <limits>

#include <kvbound/cuda/eviction/radix_selection.hpp>
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>
#include <kvbound/reference/core/draw.hpp>
#include <kvbound/reference/core/session.hpp>

#include "cluster_sums.hpp"
#include "weighted_mean.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using radix_selection::kNoRank;
using radix_selection::kThreads;
using radix_selection::Shared;

constexpr int kEach = 128;
constexpr int kWarps = 4;
constexpr int kPositionBits = 31;

__device__ bool is_finite(float number) { return fabsf(number) <= std::numeric_limits<float>::max(); }

// reference::spreads
__device__ bool spreads(float probability, int64_t seed, int64_t kv_head, int64_t position) {
  const uint64_t bits = draw(seed, kv_head, position);
  return static_cast<double>(bits >> 11) * 0x1p-53 < static_cast<double>(probability);
}

// reference::spread_probability, from the sum of the attention weights of `count` entries
__device__ float probability_of(float own, float sum, int64_t count) {
  if (own == 0) return 0;
  const float mean = sum / static_cast<float>(count);
  return mean == 0 ? 1 : fminf(1.0f, own / mean);
}

struct MeanArguments {
  const float* logits;
  const float* log_sum_exp;
  int64_t kv_heads, group_size, capacity;
  const int64_t* count;
  float* mean;
};

// The mean weight of one entry: a thread has one.
//
// grid       (ceil(capacity / 128), kv_heads)
// block      128; no shared memory
// registers  32 (sm_90a), 29 (sm_80)
// bytes      read: 4 for each query head and entry; written: 4 for each KV head and entry
// FLOP       2 and an exponential for each query head and entry
__global__ void __launch_bounds__(kEach) mean_attention_kernel(MeanArguments p) {
  begin_dependent_launch();
  const int64_t g = row_of_block(), entry = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x;
  if (g >= p.kv_heads || entry >= p.count[g]) return;
  float sum = 0;
  for (int64_t h = g * p.group_size; h < (g + 1) * p.group_size; ++h) {
    sum += expf(p.logits[h * p.capacity + entry] - p.log_sum_exp[h]);
  }
  p.mean[g * p.capacity + entry] = sum / static_cast<float>(p.group_size);
}

struct DrawArguments {
  Cam options;
  const float* attention;
  int64_t tokens;
  PositionLists leaving, kept;
  ClusterWeights weights;
  int64_t* offsets;
  uint8_t* spread;
  int* status;
};

// The number of kept entries before the i-th leaving one, which is the first that shares its value.
__device__ int64_t next_of(const DrawArguments& p, int64_t g, int64_t i) {
  return p.leaving.positions[g * p.leaving.stride + i] - i;
}

// Draws whether the value of one leaving entry is spread, and gives each share its
// weight: a thread has one entry.
//
// grid       (ceil(stride / 128), kv_heads)
// block      128; no shared memory
// registers  32 (sm_90a and sm_80)
// bytes      read: 12 for each leaving entry, and 12 for each of those that share its value, from the caches;
//            written: 5 for each leaving entry
// FLOP       one for each entry that shares a value
__global__ void __launch_bounds__(kEach) draw_kernel(DrawArguments p) {
  begin_dependent_launch();
  const int64_t g = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x;
  if (i >= p.leaving.count[g]) return;
  const int64_t position = p.leaving.positions[g * p.leaving.stride + i], next = next_of(p, g, i);
  const int64_t sharing = min(p.options.neighbours, p.kept.count[g] - next);
  const float own = p.attention[g * p.tokens + position];
  float sum = 0;
  for (int64_t j = next; j < next + sharing; ++j) {
    sum += p.attention[g * p.tokens + p.kept.positions[g * p.kept.stride + j]];
  }
  const bool is_drawn =
      sharing > 0 && spreads(probability_of(own, sum, sharing), p.options.seed, g, position);
  if (sharing > 0 && !is_finite(own + sum)) *p.status = 1;  // several threads may write, all of them 1
  p.weights.members[g * p.leaving.stride + i] = is_drawn ? 1 / static_cast<float>(sharing) : 0;
  p.spread[g * p.leaving.stride + i] = is_drawn ? 1 : 0;
}

// The first leaving entry whose value the kept entry i is the first to share, or a later one.
//
// grid       (ceil((capacity + 1) / 128), kv_heads)
// block      128; no shared memory
// registers  22 (sm_90a and sm_80)
// bytes      read: 8 log2(leaving) for each kept entry, from the caches; written: 8; no FLOP
__global__ void __launch_bounds__(kEach) gaps_kernel(DrawArguments p) {
  begin_dependent_launch();
  const int64_t g = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kEach + threadIdx.x;
  if (i > p.kept.stride) return;
  int64_t first = 0, last = p.leaving.count[g];
  while (first < last) {
    const int64_t middle = (first + last) / 2;
    if (next_of(p, g, middle) < i) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  p.offsets[g * (p.kept.stride + 1) + i] = first;
}

template <Storage T>
struct AddArguments {
  const float*
      sums;  // [kv_heads, capacity, head_dim]: of the values that each kept entry is the first to share
  PositionLists kept;
  int64_t neighbours;
  cluster_sums::MergedRows<T> merged;
};

// Adds the shares to the value of one kept entry: a warp has one.
//
// grid       (ceil(capacity / 4), kv_heads)
// block      128; no shared memory
// registers  56 (sm_90a), 64 (sm_80)
// bytes      read: 4 head_dim for each of up to `neighbours` sums, mostly from the caches, and head_dim
//            sizeof(T); written: head_dim sizeof(T) for each kept entry
// FLOP       head_dim for each of these sums
template <Storage T>
__global__ void __launch_bounds__(kWarps * 32) add_shares_kernel(AddArguments<T> p) {
  begin_dependent_launch();
  const int64_t g = blockIdx.y, j = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (j >= p.kept.count[g]) return;
  const auto head_dim = static_cast<int>(p.merged.cache.cols);
  cluster_sums::Columns shares;
  for (int64_t i = max(int64_t{0}, j - p.neighbours + 1); i <= j; ++i) {
    const float* const sum = p.sums + (g * p.kept.stride + i) * head_dim;
    shares.each(head_dim, [&](int c, float& number) { number += sum[c]; });
  }
  p.merged.add(g, j, head_dim, shares);
}

struct SpreadArguments {
  Cam options;
  const float* attention;
  CacheSlots slots;
  PositionLists changed;
  int64_t* merged_into;
  int* status;
};

struct SpreadShared {
  Shared selection;
  float* sums;       // [kThreads / 32]
  int64_t* nearest;  // [kThreads / 32]
  int* is_drawn;

  __host__ __device__ explicit SpreadShared(SharedMemory& memory)
      : selection(memory, 0),
        sums(memory.array<float>(kThreads / 32)),
        nearest(memory.array<int64_t>(kThreads / 32)),
        is_drawn(memory.array<int>(1)) {}
};

// The attention and the smallest position of the entries that share a value, in every thread's
// order: [0] of shared arrays.
template <class Shares>
__device__ void reduce_sharing(const SpreadArguments& p, int64_t g, const Shares& shares,
                               const SpreadShared& shared) {
  const int64_t entries = p.slots.entries[g];
  float sum = 0;
  int64_t nearest = std::numeric_limits<int64_t>::max();
  for (int64_t slot = threadIdx.x; slot < entries; slot += kThreads) {
    if (!shares(slot)) continue;
    sum += p.attention[g * p.slots.capacity + slot];
    nearest = min(nearest, p.slots.positions[g * p.slots.capacity + slot]);
  }
  sum = warp_sum(sum);
  nearest = warp_min(nearest);
  if (lane() == 0) shared.sums[warp()] = sum, shared.nearest[warp()] = nearest;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kThreads / 32; ++w) {
    shared.sums[0] += shared.sums[w];
    shared.nearest[0] = min(shared.nearest[0], shared.nearest[w]);
  }
}

// Which entries of one KV head share the evicted one's value: those of the next larger positions.
//
// grid       kv_heads
// block      1024
// shared     33,300 bytes
// registers  48 (sm_90a and sm_80)
// bytes      read: 8 for each entry for each pass of the selection, of which there are four, and for the draw
//            and the list 12 and 8; written: 8 for each entry that shares the value, 16 for each KV head
// FLOP       1 for each entry
__global__ void __launch_bounds__(kThreads, 1) choose_sharing_kernel(SpreadArguments p) {
  begin_dependent_launch();
  SharedMemory memory;
  const SpreadShared shared(memory);
  const int64_t g = blockIdx.x, evicted = p.slots.free[g], entries = p.slots.entries[g];
  const int64_t* const positions = p.slots.positions + g * p.slots.capacity;
  const int64_t own = evicted >= 0 ? positions[evicted] : 0;
  const auto rank = [&](int64_t slot) {
    const bool follows = evicted >= 0 && positions[slot] > own;
    return follows ? (uint64_t{1} << kPositionBits) - 1 - static_cast<uint64_t>(positions[slot]) : kNoRank;
  };
  int following = 0;
  for (int64_t first = warp() * 32; first < entries; first += kThreads) {
    const int64_t slot = first + lane();
    following += __popc(__ballot_sync(kAllLanes, slot < entries && rank(slot) != kNoRank));
  }
  if (lane() == 0) shared.selection.warp_totals[warp()] = following;
  __syncthreads();
  following = 0;
  for (int w = 0; w < kThreads / 32; ++w) following += shared.selection.warp_totals[w];
  const int64_t sharing = min(p.options.neighbours, static_cast<int64_t>(following));
  const uint64_t least = radix_selection::least_rank(rank, entries, sharing, shared.selection, kPositionBits);
  const auto shares = [&](int64_t slot) { return rank(slot) != kNoRank && rank(slot) >= least; };
  reduce_sharing(p, g, shares, shared);
  if (threadIdx.x == 0) {
    const float weight = evicted >= 0 ? p.attention[g * p.slots.capacity + evicted] : 0;
    const int64_t of_segment = static_cast<int>(g) % static_cast<int>(p.slots.kv_heads / p.slots.segments);
    const bool is_drawn = sharing > 0 && spreads(probability_of(weight, shared.sums[0], sharing),
                                                 p.options.seed, of_segment, own);
    if (sharing > 0 && !is_finite(weight + shared.sums[0])) *p.status = 1;
    *shared.is_drawn = is_drawn ? 1 : 0;
    p.changed.count[g] = is_drawn ? sharing : 0;
    p.merged_into[g] = evicted < 0 ? kNothingEvicted : is_drawn ? shared.nearest[0] : kNotMerged;
  }
  __syncthreads();
  const bool is_drawn = *shared.is_drawn != 0;
  radix_selection::write_ascending(
      entries, [&](int64_t slot) { return is_drawn && shares(slot); },
      {p.changed.positions, p.changed.stride}, g, shared.selection.warp_totals);
}

template <Storage T>
struct ShareArguments {
  CacheSlots slots;
  PositionLists changed;
  cluster_sums::MergedRows<T> merged;
};

// Adds the evicted entry's share to one entry's value: a warp has one.
//
// grid       (ceil(stride / 4), kv_heads)
// block      128; no shared memory
// registers  34 (sm_90a), 32 (sm_80)
// bytes      read: 2 head_dim sizeof(T) for each changed entry; written: head_dim sizeof(T)
// FLOP       2 head_dim for each changed entry
template <Storage T>
__global__ void __launch_bounds__(kWarps * 32) add_share_kernel(ShareArguments<T> p) {
  begin_dependent_launch();
  const int64_t g = row_of_block(), i = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (g >= p.slots.kv_heads) return;
  const int64_t count = p.changed.count[g];
  if (i >= count) return;
  const DeviceTensor<T>& cache = p.merged.cache;
  const auto head_dim = static_cast<int>(cache.cols);
  const T* const evicted = cache.data + g * cache.slice_stride + p.slots.free[g] * cache.row_stride;
  cluster_sums::Columns share;
  share.each(head_dim,
             [&](int c, float& number) { number = to_float(evicted[c]) / static_cast<float>(count); });
  p.merged.add(g, p.changed.positions[g * p.changed.stride + i], head_dim, share);
}

// Where spread_leaving has what in its workspace.
struct SpreadLayout {
  int64_t sums, weights, offsets, parts, bytes;

  SpreadLayout(int64_t kv_heads, int64_t stride, int64_t capacity, int64_t head_dim) {
    constexpr int64_t kAligned = 256;
    offsets = 0;
    sums = round_up(kv_heads * (capacity + 1) * static_cast<int64_t>(sizeof(int64_t)), kAligned);
    weights = sums + round_up(kv_heads * capacity * head_dim * static_cast<int64_t>(sizeof(float)), kAligned);
    parts = weights + round_up(kv_heads * stride * static_cast<int64_t>(sizeof(float)), kAligned);
    bytes = parts + cluster_sums_workspace(kv_heads, 1, stride, head_dim);
  }
};

}  // namespace

void mean_attention(const float* logits, const float* log_sum_exp, int64_t query_heads, int64_t kv_heads,
                    int64_t capacity, const int64_t* count, float* mean, Stream stream) {
  require_groups(query_heads, kv_heads);
  if (capacity == 0) return;
  launch_dependent<mean_attention_kernel>(
      {extent_of_rows(ceil_division(capacity, kEach), kv_heads), extent(kEach), 0, stream},
      MeanArguments{logits, log_sum_exp, kv_heads, query_heads / kv_heads, capacity, count, mean});
}

int64_t spread_leaving_workspace(int64_t kv_heads, int64_t stride, int64_t capacity, int64_t head_dim) {
  return SpreadLayout(kv_heads, stride, capacity, head_dim).bytes;
}

template <Storage T>
void spread_leaving(const Cam& options, const float* attention, const PositionLists& leaving,
                    const PositionLists& kept, DeviceTensor<const T> values, DeviceTensor<T> cache,
                    uint8_t* spread, int* status, Workspace workspace, Stream stream) {
  require_layout("values", values);
  require_layout("cache", cache);
  require_range("neighbours", options.neighbours, 1, INT64_MAX);
  require_equal("slices of the cache", cache.slices, "slices of values", values.slices);
  require_equal("columns of the cache", cache.cols, "columns of values", values.cols);
  require_range("head_dim", values.cols, 1, cluster_sums::kMostColumns);
  require_equal("stride of the kept entries", kept.stride, "rows of the cache", cache.rows);
  const SpreadLayout layout(values.slices, leaving.stride, kept.stride, values.cols);
  require_workspace(workspace, layout.bytes);
  if (leaving.stride == 0 || values.slices == 0) return;
  std::byte* const memory = static_cast<std::byte*>(workspace.data);
  const ClusterWeights weights{1, nullptr, reinterpret_cast<float*>(memory + layout.weights)};
  const DrawArguments arguments{options,
                                attention,
                                values.rows,
                                leaving,
                                kept,
                                weights,
                                reinterpret_cast<int64_t*>(memory + layout.offsets),
                                spread,
                                status};
  auto* const sums = reinterpret_cast<float*>(memory + layout.sums);
  launch_dependent<draw_kernel>(
      {extent(ceil_division(leaving.stride, kEach), values.slices), extent(kEach), 0, stream}, arguments);
  if (kept.stride == 0) return;  // no value is spread
  launch_dependent<gaps_kernel>(
      {extent(ceil_division(kept.stride + 1, kEach), values.slices), extent(kEach), 0, stream}, arguments);
  weighted_sums<T>(values, {leaving.positions, leaving.stride, arguments.offsets, kept.stride}, weights, sums,
                   {memory + layout.parts, layout.bytes - layout.parts}, stream);
  launch_dependent<add_shares_kernel<T>>(
      {extent(ceil_division(kept.stride, kWarps), values.slices), extent(kWarps * 32), 0, stream},
      AddArguments<T>{sums, kept, options.neighbours, {cache, nullptr, kept.stride, status}});
}

template <Storage T>
void spread_entry(const Cam& options, const float* attention, const CacheSlots& slots, DeviceTensor<T> cache,
                  const PositionLists& changed, int64_t* merged_into, int* status, Stream stream) {
  require_layout("cache", cache);
  require_range("neighbours", options.neighbours, 1, INT64_MAX);
  require_range("head_dim", cache.cols, 1, cluster_sums::kMostColumns);
  require_equal("KV heads of the slots", slots.kv_heads, "slices of the cache", cache.slices);
  require_equal("capacity of the slots", slots.capacity, "rows of the cache", cache.rows);
  require_range("stride of the changed entries", changed.stride, std::min(options.neighbours, slots.capacity),
                INT64_MAX);
  if (slots.kv_heads == 0 || slots.capacity == 0) return;
  launch_dependent<choose_sharing_kernel>(
      {extent(slots.kv_heads), extent(kThreads), shared_bytes<SpreadShared>(), stream},
      SpreadArguments{options, attention, slots, changed, merged_into, status});
  launch_dependent<add_share_kernel<T>>(
      {extent_of_rows(ceil_division(changed.stride, kWarps), slots.kv_heads), extent(kWarps * 32), 0, stream},
      ShareArguments<T>{slots, changed, {cache, nullptr, slots.capacity, status}});
}

template void spread_leaving(const Cam&, const float*, const PositionLists&, const PositionLists&,
                             DeviceTensor<const float>, DeviceTensor<float>, uint8_t*, int*, Workspace,
                             Stream);
template void spread_leaving(const Cam&, const float*, const PositionLists&, const PositionLists&,
                             DeviceTensor<const Float16>, DeviceTensor<Float16>, uint8_t*, int*, Workspace,
                             Stream);
template void spread_leaving(const Cam&, const float*, const PositionLists&, const PositionLists&,
                             DeviceTensor<const Bfloat16>, DeviceTensor<Bfloat16>, uint8_t*, int*, Workspace,
                             Stream);
template void spread_entry(const Cam&, const float*, const CacheSlots&, DeviceTensor<float>,
                           const PositionLists&, int64_t*, int*, Stream);
template void spread_entry(const Cam&, const float*, const CacheSlots&, DeviceTensor<Float16>,
                           const PositionLists&, int64_t*, int*, Stream);
template void spread_entry(const Cam&, const float*, const CacheSlots&, DeviceTensor<Bfloat16>,
                           const PositionLists&, int64_t*, int*, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
