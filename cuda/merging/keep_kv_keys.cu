#include <cmath>
#include <limits>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "cluster_rows.hpp"
#include "keep_kv.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace cluster_sums;

constexpr int kRounds = 2;  // kept entries of a group of lanes, one behind the other

template <Storage T>
struct Arguments {
  Sums<T> sums;
  MergeQueries queries;
  MergedNumbers numbers;
  MergedRows<T> merged;
  float head_share;  // 1 / heads

  __host__ __device__ int heads() const { return static_cast<int>(sums.weights.rows); }
};

template <Storage T, int kDims, int kHeads>
struct Shared {
  StagedEntries<kHeads> staged;
  float* queries;  // [heads, kDims], as lanes read them
  float* inverse;  // likewise: row h is what a missing logit of 1 of head h adds to the key

  __host__ __device__ Shared(SharedMemory& memory, int heads)
      : staged(memory, ClusterLanes<T, kDims>::kGroups),
        queries(memory.array<float>(heads * kDims)),
        inverse(memory.array<float>(heads * kDims)) {}
};

// Four numbers of a row; zeros behind head_dim.
__device__ float4 four_of(const float* row, int column, int head_dim) {
  const float* const four = row + column;
  float4 numbers = {0, 0, 0, 0};
  if (head_dim % 4 == 0) {
    if (column < head_dim) numbers = *reinterpret_cast<const float4*>(four);
  } else {
    if (column < head_dim) numbers.x = four[0];
    if (column + 1 < head_dim) numbers.y = four[1];
    if (column + 2 < head_dim) numbers.z = four[2];
    if (column + 3 < head_dim) numbers.w = four[3];
  }
  return numbers;
}

// Copies the group's queries and their pseudo-inverse to shared memory, as lanes read them;
// both are in flight together.
template <Storage T, int kDims, int kHeads>
__device__ void copy_queries(const Arguments<T>& p, int64_t g, const Shared<T, kDims, kHeads>& shared) {
  const int head_dim = p.sums.head_dim();
  const int64_t before = g * p.heads() * head_dim;
#pragma unroll 1
  for (int n = 4 * static_cast<int>(threadIdx.x); n < p.heads() * kDims; n += 4 * kRowsThreads) {
    const int column = ClusterLanes<T, kDims>::column_at(n % kDims);
    const int64_t row = before + n / kDims * head_dim;
    const float4 query = four_of(p.queries.queries + row, column, head_dim),
                 inverse = four_of(p.queries.inverse + row, column, head_dim);
    *reinterpret_cast<float4*>(shared.queries + n) = query;
    *reinterpret_cast<float4*>(shared.inverse + n) = inverse;
  }
}

// sums[h] = k-_h for the rows of weights first_head + h. The whole warp calls it.
template <Storage T, int kDims, int kHeads>
__device__ void sum_heads(const Arguments<T>& p, const HeadWeights& weights,
                          const HeadClusters<T, kDims>& clusters, const Cluster& cluster, int first_head,
                          const Shared<T, kDims, kHeads>& shared, LaneRow<T, kDims> (&sums)[kHeads]) {
  const int count = cluster.entries();
  __syncwarp();  // all lanes have read what was staged before
  stage_entries<T, kDims>(
      shared.staged, count, [&](int e) { return cluster.row(clusters, e); },
      [&](int e) { return weights.of<kHeads>(cluster, e); });
#pragma unroll
  for (int h = 0; h < kHeads; ++h) sums[h] = {};
  add_staged(p.sums.entries, clusters.lanes, shared.staged, count, sums);
  if (cluster.is_large()) cluster.add_parts(clusters, first_head, sums);
}

// The divergence of the weights' row h of the group's cluster in its h-th lane, 0 in others; of
// an only head in all lanes.
template <int kHeads, int kDims, Storage T>
__device__ float own_divergence(const Arguments<T>& p, const HeadWeights& weights, const Cluster& cluster) {
  const int h = kHeads > 1 ? ClusterLanes<T, kDims>::lane_in_row() : 0;
  if (!cluster.merges() || h >= min(kHeads, weights.together)) return 0;
  return p.numbers.divergences[weights.before_kept + cluster.i * weights.together + h];
}

// What the logits of the first kHeads of `heads` heads lack, scale q_h . (k-_h - mean) - KL_h, in all lanes
// of the group. The heads' products are summed over the lanes together. The whole warp calls it.
//
// queries  [heads, kDims], as lanes read them
template <Storage T, int kDims, int kHeads>
__device__ void lacking_logits(int heads, float divergence, const LaneRow<T, kDims>& mean,
                               const float* queries, LaneRow<T, kDims> (&sums)[kHeads],
                               float (&lacking)[kHeads]) {
  constexpr int kLanes = ClusterLanes<T, kDims>::kLanes;
  if constexpr (kHeads == 1) {  // the only mean is apart from itself by exactly 0
    lacking[0] = -divergence;
  } else {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float missing = 0;
      int i = 0;
      if (h < heads) {
        sums[h].with(queries + h * kDims, [&](float& number, float query) {
          missing = fmaf(query, number - mean.numbers[i++], missing);
        });
      }
      lacking[h] = ClusterLanes<T, kDims>::lane_in_row() == h ? missing - divergence : missing;
    }
    sum_numbers<kLanes>(lacking);
    const float own = lacking[0];  // head l kHeads / kLanes's sum in lane l
#pragma unroll
    for (int h = 0; h < kHeads; ++h) lacking[h] = __shfl_sync(kAllLanes, own, h * (kLanes / kHeads), kLanes);
  }
}

// Adds what corrects the logits of heads first_head + h. The whole warp calls it.
template <Storage T, int kDims, int kHeads>
__device__ void add_corrections(int heads, int first_head, float divergence, const LaneRow<T, kDims>& mean,
                                const Shared<T, kDims, kHeads>& shared, LaneRow<T, kDims> (&sums)[kHeads],
                                LaneRow<T, kDims>& correction) {
  float missing[kHeads];
  lacking_logits(heads - first_head, divergence, mean, shared.queries + first_head * kDims, sums, missing);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (first_head + h >= heads) break;
    correction.with(shared.inverse + (first_head + h) * kDims,
                    [&](float& number, float inverse) { number = fmaf(missing[h], inverse, number); });
  }
}

// Whether all lanes of the group have finite numbers. The whole warp calls it.
template <Storage T, int kDims>
__device__ bool is_finite(const LaneRow<T, kDims>& row) {
  bool own = true;
#pragma unroll
  for (const float number : row.numbers) own = own && fabsf(number) <= std::numeric_limits<float>::max();
  const unsigned finite = __ballot_sync(kAllLanes, own ? 1 : 0),
                 all = ClusterLanes<T, kDims>::lanes_of_group();
  return (finite & all) == all;
}

// The key of a group's cluster: its mean, multiplied by ZIP's scale or with the smallest correction of its
// logits, if that is finite. The whole warp calls it.
template <int kHeads, bool kOnePass, int kDims, Storage T>
__device__ LaneRow<T, kDims> merged_key(const Arguments<T>& p, int64_t g,
                                        const HeadClusters<T, kDims>& clusters, const Cluster& cluster,
                                        const Shared<T, kDims, kHeads>& shared) {
  constexpr int kNumbers = ClusterLanes<T, kDims>::kNumbers;
  const int parts = kOnePass ? 1 : (p.heads() + kHeads - 1) / kHeads;
  LaneRow<T, kDims> sums[kHeads], mean, correction;
  // Of more than kHeads heads the sums are formed twice: for their mean, and to be compared with it.
#pragma unroll 1
  for (int turn = 0; turn < (kOnePass ? 1 : 2 * parts); ++turn) {
    const int first_head = (turn < parts ? turn : turn - parts) * kHeads;
    const HeadWeights weights(p.sums, g, first_head);
    const float divergence = own_divergence<kHeads, kDims>(p, weights, cluster);
    sum_heads(p, weights, clusters, cluster, first_head, shared, sums);
#pragma unroll
    for (int i = 0; i < kNumbers && turn < parts; ++i) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) mean.numbers[i] += sums[h].numbers[i];
      if (turn == parts - 1) mean.numbers[i] *= p.head_share;
    }
    if (kOnePass || turn >= parts) {
      add_corrections(p.heads(), first_head, divergence, mean, shared, sums, correction);
    }
  }
  const int64_t place = g * clusters.capacity + cluster.i;
  const bool is_scaled =
      p.numbers.zip_scales && cluster.merges() && (p.numbers.zip_outcomes[place] & kSingular) == 0;
  const float scale = is_scaled ? p.numbers.zip_scales[place] : 1;
  const bool is_corrected = is_finite(correction) && !is_scaled;
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) {
    mean.numbers[i] = mean.numbers[i] * scale + (is_corrected ? correction.numbers[i] : 0);
  }
  return mean;
}

// Blocks of a multiprocessor for which registers suffice.
template <bool kOnePass, int kRowBytes>
constexpr int kResidentBlocks = kRowBytes <= 512 ? (kOnePass ? 6 : 4) : (kOnePass ? 4 : 3);

// The keys of clusters: a group of lanes has two kept entries, one behind the other (cluster_rows.hpp). Sums
// for up to kHeads rows of weights are formed together, and stay in registers until their mean is known.
//
// grid       (ceil(capacity / (2 groups)), kv_heads): 8 groups for 16-bit types and head_dim 128
// block      128
// shared     groups (272 + 272 kHeads) + 8 heads kDims bytes: 14,976 for four heads of head_dim 128
// registers  kHeads 1: 62-80, 4: 75-105 in one pass, 96-128 in more (sm_90a); 64-80, 76-108, 95-128 (sm_80)
// bytes      read: for each merging entry head_dim sizeof(T), 8 and 4 for each row of weights, again from the
//            caches for more than kHeads rows; the queries and their pseudo-inverse once for each block;
//            written: head_dim sizeof(T) for each cluster
// FLOP       2 head_dim for each row of weights and merging entry, 6 head_dim for each
//            row of weights and cluster
template <int kHeads, bool kOnePass, int kDims, Storage T>
__global__ void __launch_bounds__(kRowsThreads, kResidentBlocks<kOnePass, kDims * sizeof(T)>)
    merged_keys_kernel(Arguments<T> p) {
  begin_dependent_launch();
  using Lanes = ClusterLanes<T, kDims>;
  SharedMemory memory;
  const Shared<T, kDims, kHeads> shared(memory, p.heads());
  const int64_t g = row_of_block();
  if (g >= p.sums.entries.slices) return;
  const HeadClusters<T, kDims> clusters(p.sums, g);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRounds * Lanes::kGroups + Lanes::group();
  Cluster next(clusters, first);
  copy_queries(p, g, shared);
  __syncthreads();
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    const Cluster cluster = next;
    next = Cluster(clusters,
                   first + (round + 1) * Lanes::kGroups);  // in flight meanwhile; the last one is not used
    if (!__any_sync(kAllLanes, cluster.merges() ? 1 : 0)) continue;
    LaneRow<T, kDims> key = merged_key<kHeads, kOnePass>(p, g, clusters, cluster, shared);
    if (cluster.merges()) store_row(p.merged, g, cluster.i, p.sums.head_dim(), key);
  }
}

template <int kHeads, bool kOnePass, int kDims, Storage T>
void launch_keys(const Arguments<T>& arguments, Stream stream) {
  const Sums<T>& sums = arguments.sums;
  const int64_t blocks = ceil_division(sums.clusters.capacity, kRounds * ClusterLanes<T, kDims>::kGroups);
  using Layout = Shared<T, kDims, kHeads>;
  const auto heads = first_that_fits<Layout>({arguments.heads()});
  launch_dependent<merged_keys_kernel<kHeads, kOnePass, kDims, T>>(
      {extent_of_rows(blocks, sums.entries.slices), extent(kRowsThreads), shared_bytes<Layout>(heads),
       stream},
      arguments);
}

}  // namespace

template <Storage T>
void merged_keys(const KeyRule& rule, DeviceTensor<const T> entries, const MergeQueries& queries,
                 const MergedEntries& merged, const ClusterWeights& weights, const MergedNumbers& numbers,
                 DeviceTensor<T> cache, int* status, Workspace workspace, Stream stream) {
  require_layout("cache", cache);
  require_equal("slices of the cache", cache.slices, "slices of entries", entries.slices);
  require_equal("columns of the cache", cache.cols, "columns of entries", entries.cols);
  require_equal("whether there are scales of zip", numbers.zip_scales != nullptr, "whether the rule is zip",
                rule.key == MergedKey::zip);
  const Arguments<T> arguments{sums_of(entries, merged.kept, merged.clusters, weights, workspace, stream),
                               queries,
                               numbers,
                               {cache, merged.into, merged.clusters.capacity, status},
                               1 / static_cast<float>(weights.rows)};
  if (merged.clusters.capacity == 0) return;
  by_dims(entries.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
    if (weights.rows == 1) {
      launch_keys<1, true, kDims>(arguments, stream);
    } else if (weights.rows <= kHeadsAtOnce) {
      launch_keys<kHeadsAtOnce, true, kDims>(arguments, stream);
    } else {
      launch_keys<kHeadsAtOnce, false, kDims>(arguments, stream);
    }
  });
}

template void merged_keys(const KeyRule&, DeviceTensor<const float>, const MergeQueries&,
                          const MergedEntries&, const ClusterWeights&, const MergedNumbers&,
                          DeviceTensor<float>, int*, Workspace, Stream);
template void merged_keys(const KeyRule&, DeviceTensor<const Float16>, const MergeQueries&,
                          const MergedEntries&, const ClusterWeights&, const MergedNumbers&,
                          DeviceTensor<Float16>, int*, Workspace, Stream);
template void merged_keys(const KeyRule&, DeviceTensor<const Bfloat16>, const MergeQueries&,
                          const MergedEntries&, const ClusterWeights&, const MergedNumbers&,
                          DeviceTensor<Bfloat16>, int*, Workspace, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
