#include <cmath>
#include <limits>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "cluster_sums.hpp"
#include "keep_kv.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace cluster_sums;

constexpr int kWarps = 4;

template <Storage T>
struct Arguments {
  Sums<T> sums;
  MergeQueries queries;
  MergedNumbers numbers;
  MergedRows<T> merged;

  __host__ __device__ int64_t heads() const { return sums.weights.rows; }
  __device__ float number(const float* numbers_of_rows, int64_t g, int64_t h, int64_t i) const {
    return numbers_of_rows[(g * heads() + h) * sums.clusters.capacity + i];
  }
};

struct Shared {
  float* missing;  // [kWarps, heads]

  __host__ __device__ Shared(SharedMemory& memory, int64_t heads)
      : missing(memory.array<float>(kWarps * heads)) {}
};

// mean_h k-_h
template <Storage T>
__device__ Columns mean_key(const Arguments<T>& p, int64_t g, int64_t i) {
  Columns mean;
  for (int64_t h = 0; h < p.heads(); ++h) mean.add(1, p.sums.of_cluster(g, h, i));
  mean.each(p.sums.head_dim(), [&](int, float& number) { number /= static_cast<float>(p.heads()); });
  return mean;
}

// What each head's logit lacks: scale q_h . (k-_h - mean) - KL_h.
template <Storage T>
__device__ void form_missing(const Arguments<T>& p, int64_t g, int64_t i, const Columns& mean,
                             float* missing) {
  const int head_dim = p.sums.head_dim();
  for (int64_t h = 0; h < p.heads(); ++h) {
    float apart = 0;
    if (p.heads() > 1) {  // the only mean is apart from itself by exactly 0
      Columns own = p.sums.of_cluster(g, h, i);
      own.add(-1, mean);
      const float* const query = p.queries.queries + (g * p.heads() + h) * head_dim;
      own.each(head_dim, [&](int c, float& number) { apart += query[c] * number; });
      apart = warp_sum(apart);
    }
    if (lane() == 0) missing[h] = apart - p.number(p.numbers.divergences, g, h, i);
  }
  __syncwarp();
}

// Adds the smallest correction that gives the missing logits; none if it is not finite.
template <Storage T>
__device__ void correct(const Arguments<T>& p, int64_t g, const float* missing, Columns& key) {
  const int head_dim = p.sums.head_dim();
  Columns correction;
  for (int64_t n = 0; n < p.heads(); ++n) {
    const float* const combination = p.queries.combinations + (g * p.heads() + n) * p.heads();
    float length = 0;
    for (int64_t h = 0; h < p.heads(); ++h) length += combination[h] * missing[h];
    const float* const direction = p.queries.directions + (g * p.heads() + n) * head_dim;
    correction.each(head_dim, [&](int c, float& number) { number += length * direction[c]; });
  }
  bool is_finite = true;
  correction.each(head_dim, [&](int, float& number) {
    is_finite = is_finite && fabsf(number) <= std::numeric_limits<float>::max();
  });
  if (__all_sync(kAllLanes, is_finite ? 1 : 0)) key.add(1, correction);
}

// The key of one cluster: a warp has one kept entry.
//
// grid       (ceil(capacity / 4), kv_heads)
// block      128
// shared     16 bytes for each row of weights
// registers  92-107 (sm_90a), 92-115 (sm_80)
// bytes      read: for each merging entry head_dim sizeof(T), again from the caches for each further row of weights and pass,
//            8 and 4 for each row of weights; the queries and their pseudo-inverse from the caches; written:
//            head_dim sizeof(T) for each cluster
// FLOP       4 head_dim for each row of weights and merging entry, 6 head_dim for each row of weights and cluster
template <Storage T>
__global__ void __launch_bounds__(kWarps * 32, 4) merged_keys_kernel(Arguments<T> p) {
  SharedMemory memory;
  const Shared shared(memory, p.heads());
  const int64_t g = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (!p.sums.merges(g, i)) return;
  Columns key = mean_key(p, g, i);
  const int64_t place = g * p.sums.clusters.capacity + i;
  if (p.numbers.zip_scales && (p.numbers.zip_outcomes[place] & kSingular) == 0) {
    const float scale = p.numbers.zip_scales[place];
    key.each(p.sums.head_dim(), [&](int, float& number) { number *= scale; });
  } else {
    float* const missing = shared.missing + warp() * p.heads();
    form_missing(p, g, i, key, missing);
    correct(p, g, missing, key);
  }
  p.merged.store(g, i, p.sums.head_dim(), key);
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
                               {cache, merged.into, merged.clusters.capacity, status}};
  if (merged.clusters.capacity == 0) return;
  launch<merged_keys_kernel<T>>({extent(ceil_division(merged.clusters.capacity, kWarps), entries.slices),
                                 extent(kWarps * 32), shared_bytes<Shared>(weights.rows), stream},
                                arguments);
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
