#include "cluster_sums.hpp"

#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace cluster_sums {
namespace {

constexpr int kWarps = 4;

// The parts of large clusters in one chunk: a warp has every fourth row of weights.
//
// grid       (chunks, kv_heads)
// block      128; no shared memory
// registers  56-59 (sm_90a), 64-69 (sm_80)
// bytes      read: for each member of a large cluster head_dim sizeof(T) and 8 for each row of weights, mostly from the
//            caches, and 4 for each row of weights; written: up to 8 head_dim for each row of weights and chunk
// FLOP       2 head_dim for each row of weights and member of a large cluster
template <Storage T>
__global__ void __launch_bounds__(kWarps * 32) sum_parts_kernel(Sums<T> p, float* parts) {
  const int64_t g = blockIdx.y, chunk = blockIdx.x;
  const int64_t begin = chunk * kChunk, end = min(begin + kChunk, p.first(g, p.clusters.capacity));
  if (begin >= end) return;
  const int64_t of_first = p.cluster_at(g, begin), of_last = p.cluster_at(g, end - 1);
  const auto sum_part = [&](int64_t i, int second) {
    const int64_t from = p.first(g, i), to = p.first(g, i + 1);
    if (to - from <= kChunk) return;
    for (int64_t h = warp(); h < p.weights.rows; h += kWarps) {
      Columns sum;
      p.add_places(g, h, max(from, begin), min(to, end), sum);
      float* const numbers = parts + p.part(g, chunk, second, h);
      sum.each(p.head_dim(), [&](int c, float& number) { numbers[c] = number; });
    }
  };
  sum_part(of_first, 0);
  if (of_last != of_first) sum_part(of_last, 1);
}

}  // namespace

template <Storage T>
Sums<T> sums_of(DeviceTensor<const T> entries, const PositionLists& kept, const Clusters& clusters,
                const ClusterWeights& weights, Workspace workspace, Stream stream) {
  require_layout("entries", entries);
  require_range("head_dim", entries.cols, 1, kMostColumns);
  require_range("rows of weights", weights.rows, 1, INT32_MAX);
  require_range("stride of the clusters", clusters.stride, 0, INT32_MAX);
  require_range("capacity of the clusters", clusters.capacity, 0, INT32_MAX);
  require_workspace(workspace,
                    cluster_sums_workspace(entries.slices, weights.rows, clusters.stride, entries.cols));
  const auto parts = static_cast<float*>(workspace.data);
  const Sums<T> sums{entries, kept, clusters, weights, parts};
  if (clusters.stride <= kChunk) return sums;  // there is no large cluster
  launch<sum_parts_kernel<T>>({extent(sums.chunks(), entries.slices), extent(kWarps * 32), 0, stream}, sums,
                              parts);
  return sums;
}

template Sums<float> sums_of(DeviceTensor<const float>, const PositionLists&, const Clusters&,
                             const ClusterWeights&, Workspace, Stream);
template Sums<Float16> sums_of(DeviceTensor<const Float16>, const PositionLists&, const Clusters&,
                               const ClusterWeights&, Workspace, Stream);
template Sums<Bfloat16> sums_of(DeviceTensor<const Bfloat16>, const PositionLists&, const Clusters&,
                                const ClusterWeights&, Workspace, Stream);

}  // namespace cluster_sums

int64_t cluster_sums_workspace(int64_t kv_heads, int64_t rows, int64_t stride, int64_t head_dim) {
  if (stride <= cluster_sums::kChunk) return 0;
  return kv_heads * ceil_division(stride, cluster_sums::kChunk) * 2 * rows * head_dim *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
