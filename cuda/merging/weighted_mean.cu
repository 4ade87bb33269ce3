#include "weighted_mean.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "cluster_sums.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace cluster_sums;

constexpr int kWarps = 4;

template <Storage T>
struct MeanArguments {
  Sums<T> sums;
  const float* shares;
  MergedRows<T> merged;
};

// The mean of one cluster: a warp has one kept entry.
//
// grid       (ceil(capacity / 4), kv_heads)
// block      128; no shared memory
// registers  88-110 (sm_90a), 100-124 (sm_80)
// bytes      read: for each merging entry head_dim sizeof(T), again from the caches for each further row of weights, 8 and
//            4 for each row of weights; written: head_dim sizeof(T) for each cluster
// FLOP       2 head_dim for each row of weights and merging entry
template <Storage T>
__global__ void __launch_bounds__(kWarps * 32, 4) weighted_means_kernel(MeanArguments<T> p) {
  const int64_t g = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (!p.sums.merges(g, i)) return;
  const int64_t heads = p.sums.weights.rows;
  Columns mean;
  for (int64_t h = 0; h < heads; ++h) {
    const float share =
        p.shares ? p.shares[(g * heads + h) * p.sums.clusters.capacity + i] : 1 / static_cast<float>(heads);
    Columns own = p.sums.of_cluster(g, h, i);
    mean.add(share, own);
  }
  p.merged.store(g, i, p.sums.head_dim(), mean);
}

// The sum of one cluster's members: a warp has one kept entry.
//
// grid       (ceil(capacity / 4), kv_heads)
// block      128; no shared memory
// registers  56 (sm_90a), 56-64 (sm_80)
// bytes      read: for each member head_dim sizeof(T) and 12; written: 4 head_dim for each kept entry
// FLOP       2 head_dim for each member
template <Storage T>
__global__ void __launch_bounds__(kWarps * 32) weighted_sums_kernel(Sums<T> p, float* sums) {
  const int64_t g = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (i >= p.clusters.capacity) return;
  Columns sum = p.of_members(g, 0, i);
  float* const numbers = sums + (g * p.clusters.capacity + i) * p.head_dim();
  sum.each(p.head_dim(), [&](int c, float& number) { numbers[c] = number; });
}

}  // namespace

template <Storage T>
void weighted_means(DeviceTensor<const T> entries, const MergedEntries& merged, const ClusterWeights& weights,
                    const float* shares, DeviceTensor<T> cache, int* status, Workspace workspace,
                    Stream stream) {
  require_layout("cache", cache);
  require_equal("slices of the cache", cache.slices, "slices of entries", entries.slices);
  require_equal("columns of the cache", cache.cols, "columns of entries", entries.cols);
  const Sums<T> sums = sums_of(entries, merged.kept, merged.clusters, weights, workspace, stream);
  if (sums.clusters.capacity == 0) return;
  launch<weighted_means_kernel<T>>(
      {extent(ceil_division(sums.clusters.capacity, kWarps), entries.slices), extent(kWarps * 32), 0, stream},
      MeanArguments<T>{sums, shares, {cache, merged.into, sums.clusters.capacity, status}});
}

template <Storage T>
void weighted_sums(DeviceTensor<const T> entries, const Clusters& clusters, const ClusterWeights& weights,
                   float* sums, Workspace workspace, Stream stream) {
  require_equal("rows of weights", weights.rows, "rows of sums", 1);
  const Sums<T> given = sums_of(entries, {}, clusters, weights, workspace, stream);
  if (clusters.capacity == 0) return;
  launch<weighted_sums_kernel<T>>(
      {extent(ceil_division(clusters.capacity, kWarps), entries.slices), extent(kWarps * 32), 0, stream},
      given, sums);
}

template void weighted_means(DeviceTensor<const float>, const MergedEntries&, const ClusterWeights&,
                             const float*, DeviceTensor<float>, int*, Workspace, Stream);
template void weighted_means(DeviceTensor<const Float16>, const MergedEntries&, const ClusterWeights&,
                             const float*, DeviceTensor<Float16>, int*, Workspace, Stream);
template void weighted_means(DeviceTensor<const Bfloat16>, const MergedEntries&, const ClusterWeights&,
                             const float*, DeviceTensor<Bfloat16>, int*, Workspace, Stream);
template void weighted_sums(DeviceTensor<const float>, const Clusters&, const ClusterWeights&, float*,
                            Workspace, Stream);
template void weighted_sums(DeviceTensor<const Float16>, const Clusters&, const ClusterWeights&, float*,
                            Workspace, Stream);
template void weighted_sums(DeviceTensor<const Bfloat16>, const Clusters&, const ClusterWeights&, float*,
                            Workspace, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
