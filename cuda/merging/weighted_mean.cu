#include "weighted_mean.hpp"

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "cluster_rows.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace cluster_sums;

template <Storage T>
struct MeanArguments {
  Sums<T> sums;
  const float* shares;
  MergedRows<T> merged;
  float equal_share;  // 1 / rows of weights

  // The share of row h in the mean of kept entry i.
  __device__ float share(int64_t g, int h, int i) const {
    return shares ? shares[sums.of_kept().place(h, g, i)] : equal_share;
  }
  // The shares of the weights' rows, which lie side by side.
  __device__ EntryWeights<kHeadsAtOnce> shares_of(const HeadWeights& weights, int i) const {
    if (shares) {
      return load_weights<kHeadsAtOnce>(shares + weights.before_kept + i * weights.together,
                                        weights.together);
    }
    EntryWeights<kHeadsAtOnce> equal;
#pragma unroll
    for (float& share : equal.numbers) share = equal_share;
    return equal;
  }
};

// The weight of one entry in the mean of its cluster: the sum of its weights in all rows,
// multiplied by their shares.
template <int kDims, Storage T>
__device__ float mean_weight(const MeanArguments<T>& p, int64_t g, const HeadClusters<T, kDims>& clusters,
                             const Cluster& cluster, int entry) {
  float sum = 0;
#pragma unroll 1
  for (int first = 0; first < clusters.heads; first += kHeadsAtOnce) {
    const HeadWeights weights(p.sums, g, first);
    const EntryWeights<kHeadsAtOnce> own = weights.of<kHeadsAtOnce>(cluster, entry),
                                     shares = p.shares_of(weights, cluster.i);
#pragma unroll
    for (int n = 0; n < kHeadsAtOnce; ++n) sum = fmaf(shares.numbers[n], own.numbers[n], sum);
  }
  return sum;
}

// The mean of one cluster: a group of lanes has one kept entry (cluster_rows.hpp). A row's weights are
// multiplied by their shares and added before they multiply the row, so that it is read once.
//
// grid       (ceil(capacity / groups), kv_heads): 8 groups for 16-bit types and head_dim 128
// block      128
// shared     544 bytes for each group
// registers  55-56 (sm_90a), 48-56 (sm_80)
// bytes      read: for each merging entry head_dim sizeof(T), 8 and 4 for each row of weights; 4 for each row
//            of weights and cluster; written: head_dim sizeof(T) for each cluster
// FLOP       2 head_dim and 2 for each row of weights, for each merging entry
template <int kDims, Storage T>
__global__ void __launch_bounds__(kRowsThreads, 9) weighted_means_kernel(MeanArguments<T> p) {
  begin_dependent_launch();
  using Lanes = ClusterLanes<T, kDims>;
  SharedMemory memory;
  const StagedEntries<1> staged(memory, Lanes::kGroups);
  const int64_t g = row_of_block();
  if (g >= p.sums.entries.slices) return;
  const HeadClusters<T, kDims> clusters(p.sums, g);
  const Cluster cluster(clusters, static_cast<int64_t>(blockIdx.x) * Lanes::kGroups + Lanes::group());
  const int count = cluster.entries();
  stage_entries<T, kDims>(
      staged, count, [&](int e) { return cluster.row(clusters, e); },
      [&](int e) { return EntryWeights<1>{{mean_weight(p, g, clusters, cluster, e)}}; });
  LaneRow<T, kDims> mean[1];
  add_staged(p.sums.entries, clusters.lanes, staged, count, mean);
  if (!cluster.merges()) return;
  for (int h = 0; cluster.is_large() && h < clusters.heads; ++h) {
    const float share = p.share(g, h, cluster.i);
    LaneRow<T, kDims> sum[1];
    cluster.add_parts(clusters, h, sum);
#pragma unroll
    for (int n = 0; n < Lanes::kNumbers; ++n) {
      mean[0].numbers[n] = fmaf(share, sum[0].numbers[n], mean[0].numbers[n]);
    }
  }
  store_row(p.merged, g, cluster.i, p.sums.head_dim(), mean[0]);
}

// The sum of one cluster's members: a group of lanes has one kept entry.
//
// grid       (ceil(capacity / groups), kv_heads)
// block      128
// shared     544 bytes for each group
// registers  48-64 (sm_90a and sm_80)
// bytes      read: for each member head_dim sizeof(T) and 12; written: 4 head_dim for each kept entry
// FLOP       2 head_dim for each member
template <int kDims, Storage T>
__global__ void __launch_bounds__(kRowsThreads, 6) weighted_sums_kernel(Sums<T> p, float* sums) {
  begin_dependent_launch();
  using Lanes = ClusterLanes<T, kDims>;
  SharedMemory memory;
  const StagedEntries<1> staged(memory, Lanes::kGroups);
  const int64_t g = row_of_block();
  if (g >= p.entries.slices) return;
  const HeadClusters<T, kDims> clusters(p, g);
  const Cluster cluster(clusters, static_cast<int64_t>(blockIdx.x) * Lanes::kGroups + Lanes::group());
  const int count = max(0, cluster.entries() - 1);  // without the kept one
  const HeadWeights weights(p, g, 0);
  stage_entries<T, kDims>(
      staged, count, [&](int e) { return cluster.row(clusters, e + 1); },
      [&](int e) { return weights.of_member<1>(cluster.from + e); });
  LaneRow<T, kDims> sum[1];
  add_staged(p.entries, clusters.lanes, staged, count, sum);
  if (cluster.i >= clusters.capacity) return;
  if (cluster.is_large()) cluster.add_parts(clusters, 0, sum);
  sum[0].store_numbers(sums + (g * clusters.capacity + cluster.i) * p.head_dim(), p.head_dim());
}

template <Storage T, int kDims>
LaunchShape shape_of(const Sums<T>& sums, Stream stream) {
  constexpr int kGroups = ClusterLanes<T, kDims>::kGroups;
  return {extent_of_rows(ceil_division(sums.clusters.capacity, kGroups), sums.entries.slices),
          extent(kRowsThreads), shared_bytes<StagedEntries<1>>(kGroups), stream};
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
  const MeanArguments<T> arguments{sums,
                                   shares,
                                   {cache, merged.into, sums.clusters.capacity, status},
                                   1 / static_cast<float>(weights.rows)};
  by_dims(entries.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
    launch_dependent<weighted_means_kernel<kDims, T>>(shape_of<T, kDims>(sums, stream), arguments);
  });
}

template <Storage T>
void weighted_sums(DeviceTensor<const T> entries, const Clusters& clusters, const ClusterWeights& weights,
                   float* sums, Workspace workspace, Stream stream) {
  require_equal("rows of weights", weights.rows, "rows of sums", 1);
  const Sums<T> given = sums_of(entries, {}, clusters, weights, workspace, stream);
  if (clusters.capacity == 0) return;
  by_dims(entries.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
    launch_dependent<weighted_sums_kernel<kDims, T>>(shape_of<T, kDims>(given, stream), given, sums);
  });
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
