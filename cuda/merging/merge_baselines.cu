#include "merge_baselines.hpp"

#include <cmath>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "cluster_sums.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace cluster_sums;

constexpr int kWarps = 4;

// A squared length: size^2 sum, so that no square over- or underflows.
struct SquaredLength {
  float size, sum;
};

// The squared length of a vector. The whole warp calls it.
__device__ SquaredLength squared_length(int head_dim, Columns& vector) {
  SquaredLength result{0, 0};
  vector.each(head_dim, [&](int, float& number) { result.size = fmaxf(result.size, fabsf(number)); });
  result.size = warp_max(result.size);
  if (result.size == 0) return result;
  vector.each(head_dim, [&](int, float& number) {
    const float share = number / result.size;
    result.sum += share * share;
  });
  result.sum = warp_sum(result.sum);
  return result;
}

// A key and its kept entry's.
template <Storage T>
struct Pair {
  Columns key, target;

  __device__ Pair(const Sums<T>& p, int64_t g, int64_t place) {
    p.add(g, p.clusters.members[g * p.clusters.stride + place], 1, key);
    p.add(g, p.kept.positions[g * p.kept.stride + p.cluster_at(g, place)], 1, target);
  }
};

__device__ void to_direction(int head_dim, Columns& vector) {
  const SquaredLength squared = squared_length(head_dim, vector);
  const float length = squared.size * sqrtf(squared.sum);
  vector.each(head_dim, [&](int, float& number) { number = length > 0 ? number / length : 0; });
}

// The cosine of each member and its kept entry: a warp has one member.
//
// grid       (ceil(stride / 4), kv_heads)
// block      128; no shared memory
// registers  56 (sm_90a), 48 (sm_80)
// bytes      read: 2 head_dim sizeof(T) and 16 for each member, of which the kept entry's mostly
//            from the caches; written: 4
// FLOP       10 head_dim for each member
template <Storage T>
__global__ void __launch_bounds__(kWarps * 32, 4) cosines_kernel(Sums<T> p) {
  begin_dependent_launch();
  const int64_t g = row_of_block(), place = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (g >= p.entries.slices || place >= p.first(g, p.clusters.capacity)) return;
  Pair<T> pair(p, g, place);
  to_direction(p.head_dim(), pair.key);
  to_direction(p.head_dim(), pair.target);
  float cosine = 0;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) cosine += pair.key.numbers[i] * pair.target.numbers[i];
  cosine = fminf(fmaxf(warp_sum(cosine), -1.0f), 1.0f);
  if (lane() == 0) p.weights.members[g * p.clusters.stride + place] = cosine;
}

// The squared distance of each member from its kept entry: a warp has one member.
//
// grid       (ceil(stride / 4), kv_heads)
// block      128; no shared memory
// registers  56 (sm_90a), 50 (sm_80)
// bytes      read: 2 head_dim sizeof(T) and 16 for each member, of which the kept entry's mostly
//            from the caches; written: 8
// FLOP       5 head_dim for each member
template <Storage T>
__global__ void __launch_bounds__(kWarps * 32, 4) distances_kernel(Sums<T> p, SquaredLength* distances) {
  begin_dependent_launch();
  const int64_t g = row_of_block(), place = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (g >= p.entries.slices || place >= p.first(g, p.clusters.capacity)) return;
  Pair<T> pair(p, g, place);
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    // Halves, because the difference of two large numbers may not be finite; all distances are relative.
    pair.key.numbers[i] = pair.key.numbers[i] / 2 - pair.target.numbers[i] / 2;
  }
  const SquaredLength distance = squared_length(p.head_dim(), pair.key);
  if (lane() == 0) distances[g * p.clusters.stride + place] = distance;
}

// Weights exp(logit) / sum from the members' logits, and the kept entry's.
template <Storage T, class Logit>
__device__ void weigh(const Sums<T>& p, int64_t g, int64_t i, float kept, const Logit& logit) {
  const int64_t from = p.first(g, i), to = p.first(g, i + 1);
  float sum = 0;
  for (int64_t place = from + lane(); place < to; place += 32) sum += expf(logit(place));
  sum = warp_sum(sum) + expf(kept);
  for (int64_t place = from + lane(); place < to; place += 32) {
    p.weights.members[g * p.clusters.stride + place] = expf(logit(place)) / sum;
  }
  if (lane() == 0) p.weights.kept[g * p.clusters.capacity + i] = expf(kept) / sum;
}

// D2O's weights from cosines: a warp has one kept entry.
//
// grid       (ceil(capacity / 4), kv_heads)
// block      128; no shared memory
// registers  51 (sm_90a), 56 (sm_80)
// bytes      read: 8 for each member, 16 for each kept entry; written: 4 for each merging entry
// FLOP       3 and two exponentials for each member
template <Storage T>
__global__ void __launch_bounds__(kWarps * 32, 8) similarity_weights_kernel(Sums<T> p) {
  begin_dependent_launch();
  const int64_t g = row_of_block(), i = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (g >= p.entries.slices || !p.merges(g, i)) return;
  weigh(p, g, i, 1, [&](int64_t place) { return p.weights.members[g * p.clusters.stride + place]; });
}

// KVMerger's weights from squared distances: a warp has one kept entry.
//
// grid       (ceil(capacity / 4), kv_heads)
// block      128; no shared memory
// registers  39 (sm_90a and sm_80)
// bytes      read: 8 for each member, again from the caches for each of four passes, 16 for each kept entry;
//            written: 4 for each merging entry
// FLOP       about 20 with two exponentials for each member
template <Storage T>
__global__ void __launch_bounds__(kWarps * 32, 8)
    gaussian_weights_kernel(Sums<T> p, const SquaredLength* all_distances) {
  begin_dependent_launch();
  const int64_t g = row_of_block(), i = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (g >= p.entries.slices || !p.merges(g, i)) return;
  const SquaredLength* const distances = all_distances + g * p.clusters.stride;
  const int64_t from = p.first(g, i), to = p.first(g, i + 1);
  float size = 0, sum = 0;
  for (int64_t place = from + lane(); place < to; place += 32) size = fmaxf(size, distances[place].size);
  size = warp_max(size);
  const auto squared = [&](int64_t place) {  // in units of size^2
    const float share = size > 0 ? distances[place].size / size : 0;
    return share * share * distances[place].sum;
  };
  for (int64_t place = from + lane(); place < to; place += 32) sum += squared(place);
  const float twice_variance = 2 * (warp_sum(sum) / static_cast<float>(to - from));
  weigh(p, g, i, 0,
        [&](int64_t place) { return twice_variance > 0 ? -(squared(place) / twice_variance) : 0; });
}

template <Storage T>
Sums<T> cluster_keys(DeviceTensor<const T> keys, const MergedEntries& merged, const ClusterWeights& weights) {
  require_layout("keys", keys);
  require_range("head_dim", keys.cols, 1, kMostColumns);
  require_equal("rows of weights", weights.rows, "rows of weights by keys", 1);
  return {keys, merged.kept, merged.clusters, weights, nullptr};
}

template <Storage T>
dim3 grid_of_members(const Sums<T>& keys) {
  return extent_of_rows(ceil_division(keys.clusters.stride, kWarps), keys.entries.slices);
}
template <Storage T>
dim3 grid_of_clusters(const Sums<T>& keys) {
  return extent_of_rows(ceil_division(keys.clusters.capacity, kWarps), keys.entries.slices);
}

}  // namespace

int64_t gaussian_weights_workspace(int64_t kv_heads, int64_t stride) {
  return kv_heads * stride * static_cast<int64_t>(sizeof(SquaredLength));
}

template <Storage T>
void similarity_weights(DeviceTensor<const T> keys, const MergedEntries& merged,
                        const ClusterWeights& weights, Stream stream) {
  const Sums<T> p = cluster_keys(keys, merged, weights);
  if (p.clusters.stride == 0 || p.clusters.capacity == 0) return;
  launch_dependent<cosines_kernel<T>>({grid_of_members(p), extent(kWarps * 32), 0, stream}, p);
  launch_dependent<similarity_weights_kernel<T>>({grid_of_clusters(p), extent(kWarps * 32), 0, stream}, p);
}

template <Storage T>
void gaussian_weights(DeviceTensor<const T> keys, const MergedEntries& merged, const ClusterWeights& weights,
                      Workspace workspace, Stream stream) {
  const Sums<T> p = cluster_keys(keys, merged, weights);
  require_workspace(workspace, gaussian_weights_workspace(keys.slices, p.clusters.stride));
  if (p.clusters.stride == 0 || p.clusters.capacity == 0) return;
  const auto distances = static_cast<SquaredLength*>(workspace.data);
  launch_dependent<distances_kernel<T>>({grid_of_members(p), extent(kWarps * 32), 0, stream}, p, distances);
  launch_dependent<gaussian_weights_kernel<T>>({grid_of_clusters(p), extent(kWarps * 32), 0, stream}, p,
                                               distances);
}

template void similarity_weights(DeviceTensor<const float>, const MergedEntries&, const ClusterWeights&,
                                 Stream);
template void similarity_weights(DeviceTensor<const Float16>, const MergedEntries&, const ClusterWeights&,
                                 Stream);
template void similarity_weights(DeviceTensor<const Bfloat16>, const MergedEntries&, const ClusterWeights&,
                                 Stream);
template void gaussian_weights(DeviceTensor<const float>, const MergedEntries&, const ClusterWeights&,
                               Workspace, Stream);
template void gaussian_weights(DeviceTensor<const Float16>, const MergedEntries&, const ClusterWeights&,
                               Workspace, Stream);
template void gaussian_weights(DeviceTensor<const Bfloat16>, const MergedEntries&, const ClusterWeights&,
                               Workspace, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
