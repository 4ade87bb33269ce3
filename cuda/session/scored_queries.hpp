// Queries whose outputs are measured, so that entries can be scored by how much they change them.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/obcache.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/session.hpp>

#include "layer_scores.hpp"
#include "queue.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// One query of each query head: its attention over a cache, and what scores need to know of it. The memory is reused
/// for the queries of the next step.
template <Storage T>
class ScoredQuery {
 public:
  /// capacity  of the cache
  ScoredQuery(const LayerShape& shape, int64_t capacity)
      : outputs(shape.query_heads, shape.head_dim),
        logits(shape.query_heads, capacity),
        log_sum_exp(1, shape.query_heads),
        others_outputs(shape.query_heads, shape.head_dim),
        others_log_sum_exp(1, shape.query_heads),
        shape_(shape) {}

  AttendedQueries view() const {
    return {outputs.data(), logits.data(), log_sum_exp.data(), others_outputs.data(),
            others_log_sum_exp.data()};
  }

  /// Queues the attention of [1, query_heads, head_dim] queries.
  void attend(DeviceTensor<const T> queries, const CacheView<T>& cache, double scale, Queue& queue) {
    run_attention(queries, cache, scale, {outputs.data(), log_sum_exp.data(), logits.data()}, queue);
  }

  /// Queues what a score by this change needs to know of the queries, after attend with the same arguments.
  ///
  /// measured  of one query
  void measure(Change change, DeviceTensor<const T> queries, const CacheView<T>& cache, double scale,
               const float* gram, MeasuredQueries measured, Queue& queue) {
    if (leaves_out_dominant(change)) {
      find_dominants<T>(cache, logits.data(), log_sum_exp.data(), shape_.query_heads, measured.dominant,
                        queue.stream());
      CacheView<T> others = cache;
      others.excluded = measured.dominant;
      run_attention(queries, others, scale, {others_outputs.data(), others_log_sum_exp.data(), nullptr},
                    queue);
    } else {
      measured.dominant = nullptr;
    }
    measure_queries<T>(change, cache, view(), gram, shape_.query_heads, measured, queue.stream());
  }

  DeviceMatrix outputs;             ///< [query_heads, head_dim]
  DeviceMatrix logits;              ///< [query_heads, capacity]
  DeviceMatrix log_sum_exp;         ///< [1, query_heads]
  DeviceMatrix others_outputs;      ///< [query_heads, head_dim]: without the dominant entries
  DeviceMatrix others_log_sum_exp;  ///< [1, query_heads]: likewise

 private:
  void run_attention(DeviceTensor<const T> queries, const CacheView<T>& cache, double scale,
                     const AttentionResult& result, Queue& queue) const {
    const int64_t bytes =
        attention_workspace(shape_.query_heads, shape_.kv_heads, shape_.head_dim, cache.keys.rows);
    attention<T>(queries, cache, scale, result, queue.workspace(bytes), queue.stream());
  }

  LayerShape shape_;
};

/// What scores need to know of a number of queries of each query head: MeasuredQueries that owns its memory.
class QueryMeasures {
 public:
  QueryMeasures(const LayerShape& shape, int64_t queries)
      : shape_(shape),
        gram_outputs_(queries * shape.query_heads, shape.head_dim),
        output_norms_(queries, shape.query_heads),
        dominant_(queries * shape.query_heads),
        dominant_scores_(queries, shape.query_heads) {}

  /// Of the queries from the i-th on.
  MeasuredQueries from(int64_t i) {
    const int64_t row = i * shape_.query_heads;
    return {gram_outputs_.data() + row * shape_.head_dim, output_norms_.data() + row, dominant_.data() + row,
            dominant_scores_.data() + row};
  }

 private:
  LayerShape shape_;
  DeviceMatrix gram_outputs_, output_norms_;
  Buffer<int64_t> dominant_;
  DeviceMatrix dominant_scores_;
};

/// Measures the queries of a prompt's window, one after the other, each over the tokens that it sees.
template <Storage T>
class WindowQueries {
 public:
  WindowQueries(const DeviceLayer<T>& layer, int64_t window, Queue& queue)
      : layer_(layer), window_(window), queue_(queue), measures_(layer.shape, window) {}

  MeasuredQueries measured() { return measures_.from(0); }

  void measure(Change change, const float* gram) {
    const int64_t kv_heads = layer_.shape.kv_heads;
    std::vector<int64_t> visible;
    for (int64_t i = 0; i < window_; ++i) {
      visible.insert(visible.end(), kv_heads, layer_.prompt_tokens() - window_ + i + 1);
    }
    const Buffer<int64_t> entries(std::span<const int64_t>(visible), queue_.stream());
    ScoredQuery<T> query(layer_.shape, layer_.prompt_tokens());
    const DeviceTensor<const T> all = layer_.window(window_).queries;
    queue_.run("window_scores", [&] {
      for (int64_t i = 0; i < window_; ++i) {
        const DeviceTensor<const T> own{
            all.data + i * all.row_stride, 1, all.slices, all.cols, all.slice_stride,
            all.slices * all.slice_stride};
        const CacheView<T> seen{layer_.keys, layer_.values, entries.data() + i * kv_heads};
        query.attend(own, seen, layer_.scale, queue_);
        query.measure(change, own, seen, layer_.scale, gram, measures_.from(i), queue_);
      }
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
