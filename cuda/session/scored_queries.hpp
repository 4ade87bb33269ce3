// Queries whose outputs are measured, so that entries can be scored by how much they change them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/obcache.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/session.hpp>

#include "layer_scores.hpp"
#include "queue.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The attention of queries of each query head over a cache, and without their dominant entries:
/// AttendedQueries that owns its memory but for the outputs', which is reused for the next queries.
template <Storage T>
class AttendedOutputs {
 public:
  /// window  queries of each query head
  AttendedOutputs(const LayerShape& shape, int64_t window)
      : log_sum_exp(1, shape.query_heads * window),
        shape_(shape),
        window_(window),
        dominant_(shape.query_heads * window),
        dominant_logits_(1, shape.query_heads * window),
        others_outputs_(shape.query_heads * window, shape.head_dim),
        others_log_sum_exp_(1, shape.query_heads * window) {}

  /// Queues the attention of queries [query_heads, window, head_dim].
  ///
  /// dominants  whether their dominant entries, and the attention without them, are wanted
  /// logits     [query_heads, window, capacity]; null: not wanted
  /// outputs    receives [query_heads, window, head_dim]
  void attend(DeviceTensor<const T> queries, const CacheView<T>& cache, double scale, bool dominants,
              float* logits, float* outputs, Queue& queue) {
    has_dominants_ = dominants;
    outputs_ = outputs;
    const int64_t bytes = causal_attention_workspace(shape_.query_heads, window_, shape_.kv_heads,
                                                     shape_.head_dim, cache.capacity(), cache.segments);
    causal_attention<T>(queries, cache, scale, {outputs, log_sum_exp.data(), logits}, this->dominants(),
                        queue.workspace(bytes), queue.stream());
  }

  /// After attend.
  AttendedQueries view(const float* logits = nullptr) {
    return {window_, outputs_, logits, log_sum_exp.data(), dominants()};
  }

  DeviceMatrix log_sum_exp;  ///< [1, query_heads * window]

 private:
  DominantEntries dominants() {
    if (!has_dominants_) return {};
    return {dominant_.data(), dominant_logits_.data(), others_outputs_.data(), others_log_sum_exp_.data()};
  }

  LayerShape shape_;
  int64_t window_;
  bool has_dominants_ = false;
  float* outputs_ = nullptr;
  Buffer<int64_t> dominant_;
  DeviceMatrix dominant_logits_, others_outputs_, others_log_sum_exp_;
};

/// One query of each query head: its attention over a cache, and the logits.
template <Storage T>
class ScoredQuery : public AttendedOutputs<T> {
 public:
  /// capacity  of the cache
  ScoredQuery(const LayerShape& shape, int64_t capacity)
      : AttendedOutputs<T>(shape, 1), logits(shape.query_heads, capacity) {}

  AttendedQueries view() { return AttendedOutputs<T>::view(logits.data()); }

  /// Queues the attention of [1, query_heads, head_dim] queries.
  ///
  /// change   by which entries are scored, if any
  /// outputs  receives [query_heads, head_dim]
  void attend(DeviceTensor<const T> queries, const CacheView<T>& cache, double scale,
              std::optional<Change> change, float* outputs, Queue& queue) {
    const DeviceTensor<const T> of_heads{queries.data, queries.rows,       1,
                                         queries.cols, queries.row_stride, queries.row_stride};
    AttendedOutputs<T>::attend(of_heads, cache, scale, change && leaves_out_dominant(*change), logits.data(),
                               outputs, queue);
  }

  DeviceMatrix logits;  ///< [query_heads, capacity]
};

/// What scores need to know of a number of queries of each query head: MeasuredQueries that owns its memory.
class QueryMeasures {
 public:
  QueryMeasures(const LayerShape& shape, int64_t queries)
      : gram_outputs_(queries * shape.query_heads, shape.head_dim),
        output_norms_(queries, shape.query_heads),
        dominant_(queries * shape.query_heads),
        dominant_scores_(queries, shape.query_heads) {}

  MeasuredQueries view() {
    return {gram_outputs_.data(), output_norms_.data(), dominant_.data(), dominant_scores_.data()};
  }

 private:
  DeviceMatrix gram_outputs_, output_norms_;
  Buffer<int64_t> dominant_;
  DeviceMatrix dominant_scores_;
};

/// Measures the queries of a prompt's window, each over the tokens that it sees.
template <Storage T>
class WindowQueries {
 public:
  WindowQueries(const DeviceLayer<T>& layer, int64_t window, Queue& queue)
      : layer_(layer), window_(window), queue_(queue), measures_(layer.shape, window) {}

  MeasuredQueries measured() { return measures_.view(); }

  void measure(Change change, const float* gram) {
    const std::vector<int64_t> tokens(layer_.shape.kv_heads, layer_.prompt_tokens());
    const Buffer<int64_t> entries(std::span<const int64_t>(tokens), queue_.stream());
    const CacheView<T> prompt{layer_.keys, layer_.values, entries.data()};
    AttendedOutputs<T> attended(layer_.shape, window_);
    DeviceMatrix outputs(layer_.shape.query_heads * window_, layer_.shape.head_dim);
    queue_.run("window_scores", [&] {
      attended.attend(layer_.window(window_).queries, prompt, layer_.scale, leaves_out_dominant(change),
                      nullptr, outputs.data(), queue_);
      measure_queries<T>(change, prompt, attended.view(), gram, layer_.shape.query_heads, measures_.view(),
                         queue_.stream());
    });
  }

 private:
  const DeviceLayer<T>& layer_;
  int64_t window_;
  Queue& queue_;
  QueryMeasures measures_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
