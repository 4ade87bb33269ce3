#include "cluster_merging.hpp"

#include <cassert>
#include <variant>

#include <kvbound/cuda/merging/merge_baselines.hpp>
#include <kvbound/reference/core/merge_rules.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

template <Storage T>
ClusterMerging<T>::ClusterMerging(const Merge& merge, const LayerShape& shape, int64_t capacity,
                                  int64_t stride)
    : merge_(merge), shape_(shape), capacity_(capacity), stride_(stride) {
  const MergeRules rules = kvbound::rules_of(merge);
  rows_ = rules.gqa ? merging_rows(*rules.gqa, shape.group_size()) : 1;
  is_zip_ = rules.key == MergedKey::zip;
  const int64_t rows = shape.kv_heads * rows_;
  kept_weights_ = DeviceMatrix(rows, capacity);
  member_weights_ = DeviceMatrix(rows, stride);
  if (!rules.prediction) return;
  divergences_ = DeviceMatrix(rows, capacity);
  shares_ = DeviceMatrix(rows, capacity);
  log_scores_ = DeviceMatrix(shape.query_heads, capacity);
  denominators_ = DeviceMatrix(1, shape.query_heads);
  queries_ = DeviceMatrix(rows, shape.head_dim);
  inverse_ = DeviceMatrix(rows, shape.head_dim);
  if (!is_zip_) return;
  zip_scales_ = DeviceMatrix(shape.kv_heads, capacity);
  zip_outcomes_ = Buffer<uint8_t>(shape.kv_heads * capacity);
}

template <Storage T>
void ClusterMerging<T>::merge(const MergeInput<T>& input, LayerCache<T>& cache, Queue& queue) {
  struct Method {
    ClusterMerging& self;
    const MergeInput<T>& given;
    LayerCache<T>& into;
    Queue& on;

    void operator()(const KeepKv& options) const {
      self.by_scores({options.key, options.gqa, options.rank}, given, into, on);
    }
    void operator()(const ConvexMerge& options) const {
      self.by_scores({MergedKey::convex, options.gqa, 0}, given, into, on);
    }
    void operator()(const D2o&) const { self.by_keys(false, given, into, on); }
    void operator()(const KvMerger&) const { self.by_keys(true, given, into, on); }
    // Without merging and with CaM there are no clusters.
    void operator()(const NoMerge&) const { assert(false); }
    void operator()(const Cam&) const { assert(false); }
  };
  queue.run("merging", [&] { std::visit(Method{*this, input, cache, queue}, merge_); });
}

template <Storage T>
void ClusterMerging<T>::by_scores(const KeyRule& rule, const MergeInput<T>& input, LayerCache<T>& cache,
                                  Queue& queue) {
  const CacheSlots slots = cache.slots();
  if (rows_ > 1) {
    log_denominators(input.scored, shape_.query_heads, shape_.kv_heads, input.count, denominators_.data(),
                     queue.stream());
  }
  cluster_weights(rule, input.scored, shape_.query_heads, shape_.kv_heads, denominators_.data(), input.merged,
                  weights(), numbers(), {slots.votes, slots.log_votes, slots.capacity}, queue.status(),
                  queue.stream());
  switch (rule.key) {
    case MergedKey::convex:
      put_means(input, input.keys, nullptr, cache.keys(), queue);
      break;
    case MergedKey::zip:
    case MergedKey::min_norm:
      put_corrected_keys(rule, input, cache, queue);
      break;
  }
  put_means(input, input.values, shares_.data(), cache.values(), queue);
}

// Replaces the kept entries' keys by those that have their clusters' logits.
template <Storage T>
void ClusterMerging<T>::put_corrected_keys(const KeyRule& rule, const MergeInput<T>& input,
                                           LayerCache<T>& cache, Queue& queue) {
  const MergeQueries queries{queries_.data(), inverse_.data()};
  merge_queries<T>(rule, input.queries, shape_.kv_heads, input.scale, queries, queue.stream());
  const int64_t sums = cluster_sums_workspace(shape_.kv_heads, rows_, stride_, shape_.head_dim);
  merged_keys<T>(rule, input.keys, queries, input.merged, weights(), numbers(), cache.keys(),
                 queue.merge_status(), queue.workspace(sums), queue.stream());
}

template <Storage T>
void ClusterMerging<T>::by_keys(bool gaussian, const MergeInput<T>& input, LayerCache<T>& cache,
                                Queue& queue) {
  if (gaussian) {
    gaussian_weights<T>(input.keys, input.merged, weights(),
                        queue.workspace(gaussian_weights_workspace(shape_.kv_heads, stride_)),
                        queue.stream());
  } else {
    similarity_weights<T>(input.keys, input.merged, weights(), queue.stream());
  }
  put_means(input, input.keys, nullptr, cache.keys(), queue);
  put_means(input, input.values, nullptr, cache.values(), queue);
}

// Replaces the kept entries' rows by their clusters' means.
template <Storage T>
void ClusterMerging<T>::put_means(const MergeInput<T>& input, DeviceTensor<const T> entries,
                                  const float* shares, DeviceTensor<T> rows, Queue& queue) {
  const int64_t bytes = cluster_sums_workspace(shape_.kv_heads, rows_, stride_, shape_.head_dim);
  weighted_means<T>(entries, input.merged, weights(), shares, rows, queue.merge_status(),
                    queue.workspace(bytes), queue.stream());
}

template class ClusterMerging<float>;
template class ClusterMerging<Float16>;
template class ClusterMerging<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
