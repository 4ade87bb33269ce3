// One merge of all clusters of a layer, by the policy's method: the operations of
// cuda/merging in their order.
#pragma once

#include <cstdint>

#include <kvbound/cuda/merging/keep_kv.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>

#include "layer_cache.hpp"
#include "queue.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// What merges, and for which queries.
template <Storage T>
struct MergeInput {
  DeviceTensor<const T> keys, values;  ///< of the entries: of a layer, or of the cache itself
  ScoredEntries scored;                ///< the same entries; for methods that predict scores
  const int64_t* count = nullptr;      ///< [kv_heads]: how many entries there are
  DeviceTensor<const T> queries;       ///< [1, query_heads, head_dim]
  double scale = 1;
  MergedEntries merged;
};

/// Merges clusters into a cache. The memory is reused for the next merge.
template <Storage T>
class ClusterMerging {
 public:
  /// merge     a method that forms clusters
  /// capacity  of the clusters; their stride is `stride`
  ClusterMerging(const Merge& merge, const LayerShape& shape, int64_t capacity, int64_t stride);

  /// Queues the merge. Raises the queue's status where a number is not finite.
  void merge(const MergeInput<T>& input, LayerCache<T>& cache, Queue& queue);

  /// [query_heads, capacity]: the merged entries' predicted scores, for methods that predict scores.
  const DeviceMatrix& log_scores() const { return log_scores_; }
  /// [kv_heads, capacity]: ZipOutcome of each cluster; empty unless keys are formed by zip.
  const Buffer<uint8_t>& zip_outcomes() const { return zip_outcomes_; }

 private:
  void by_scores(const KeyRule& rule, const MergeInput<T>& input, LayerCache<T>& cache, Queue& queue);
  void put_corrected_keys(const KeyRule& rule, const MergeInput<T>& input, LayerCache<T>& cache,
                          Queue& queue);
  void by_keys(bool gaussian, const MergeInput<T>& input, LayerCache<T>& cache, Queue& queue);
  void put_means(const MergeInput<T>& input, DeviceTensor<const T> entries, const float* shares,
                 DeviceTensor<T> rows, Queue& queue);
  MergedNumbers numbers() {
    return {divergences_.data(), shares_.data(), zip_scales_.data(), zip_outcomes_.data(),
            log_scores_.data()};
  }
  ClusterWeights weights() { return {rows_, kept_weights_.data(), member_weights_.data()}; }

  Merge merge_;
  LayerShape shape_;
  int64_t capacity_, stride_;
  int64_t rows_;  // of weights of each KV head
  bool is_zip_;
  DeviceMatrix kept_weights_, member_weights_;  // by WeightLayout, of capacity and stride entries
  DeviceMatrix divergences_, shares_;           // by WeightLayout, of capacity entries
  DeviceMatrix zip_scales_;                     // [kv_heads, capacity]
  Buffer<uint8_t> zip_outcomes_;                // [kv_heads * capacity]
  DeviceMatrix log_scores_;                     // [query_heads, capacity]
  DeviceMatrix denominators_;                   // [1, query_heads]
  DeviceMatrix queries_, inverse_;              // [kv_heads * rows, head_dim]
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
