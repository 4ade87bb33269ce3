// A layer's prompt in device memory, and what depends on it alone: computed once for
// all policies and budgets.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <kvbound/cuda/eviction/snap_kv.hpp>
#include <kvbound/cuda/merging/score_ema.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/session.hpp>

#include "queue.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Moving averages of scores that own their memory.
class AveragedScores {
 public:
  AveragedScores() = default;
  AveragedScores(const LayerShape& shape, int64_t capacity)
      : exponents(shape.query_heads, capacity),
        mantissas(shape.query_heads, capacity),
        weights(shape.kv_heads, capacity) {}

  /// Averages that no query has contributed to.
  void begin(Stream stream) {
    const std::vector<float> nothing(exponents.rows() * exponents.cols(),
                                     -std::numeric_limits<float>::infinity());
    exponents.upload(nothing, stream);
    mantissas.clear(stream);
    weights.clear(stream);
  }
  ScoreAverages view() { return {exponents.data(), mantissas.data(), weights.data(), weights.cols()}; }

  DeviceMatrix exponents, mantissas;  ///< [query_heads, capacity]
  DeviceMatrix weights;               ///< [kv_heads, capacity]
};

/// LayerView in device memory.
template <Storage T>
struct DeviceLayer {
  LayerShape shape;
  double scale = 1;
  DeviceTensor<const T> keys, values;  ///< [kv_heads, n, head_dim]
  DeviceTensor<const T> queries;       ///< [query_heads, window_queries, head_dim]: the last prompt queries
  DeviceTensor<const T> output_projection;  ///< [query_heads, head_dim, model_dim]

  int64_t prompt_tokens() const { return keys.rows; }
  /// The last `size` queries.
  WindowView<T> window(int64_t size) const {
    DeviceTensor<const T> last = queries;
    last.data += (queries.rows - size) * queries.row_stride;
    last.rows = size;
    return {last, keys, scale};
  }
  /// The last query of every head, [1, query_heads, head_dim].
  DeviceTensor<const T> last_queries() const {
    return {queries.data + (queries.rows - 1) * queries.row_stride,
            1,
            queries.slices,
            queries.cols,
            queries.slice_stride,
            queries.slices * queries.slice_stride};
  }
};

/// A layer's numbers, rounded once to the storage type.
template <Storage T>
class UploadedLayer {
 public:
  UploadedLayer(const LayerView& layer, Queue& queue);
  /// What decode steps need of several layers of one shape and scale: W^O.
  UploadedLayer(std::span<UploadedLayer* const> parts, Queue& queue);

  DeviceLayer<T> view() const {
    return {shape_, scale_, keys_.view(), values_.view(), queries_.view(), output_projection_.view()};
  }

 private:
  LayerShape shape_;
  double scale_;
  StoredTensor<T> keys_, values_, queries_, output_projection_;
};

/// The matrices of gram_matrices, [query_heads, head_dim, head_dim]; null for the head's space.
struct SpaceMatrices {
  const float* gram = nullptr;
  const float* factor = nullptr;
};

/// Norms of values after W^O in one of the two norms, which may be those of a cache's entries.
template <Storage T>
struct ProjectedNorms {
  DeviceTensor<const T> output_projection;  ///< [query_heads, head_dim, model_dim]
  Norm norm = Norm::l1;
  const float* factor = nullptr;  ///< of L2: gram_matrices

  /// projected_value_norms or projected_value_norms_l2
  void operator()(DeviceTensor<const T> values, float* norms, Stream stream) const;
};

/// Scores and norms that depend on one layer alone: reference::LayerScores. Each is
/// computed on its first use.
template <Storage T>
class LayerScores {
 public:
  /// What `layer` views must outlive the object.
  LayerScores(const DeviceLayer<T>& layer, Queue& queue) : layer_(layer), queue_(queue) {}
  /// Of several layers together, which `layer` views: what the parts know of W^O.
  LayerScores(std::span<LayerScores* const> parts, const DeviceLayer<T>& layer, Queue& queue);

  const DeviceLayer<T>& layer() const { return layer_; }

  /// window_log_sum_exp: [query_heads, window]
  const DeviceMatrix& log_sum_exp(int64_t window);
  /// window_attention: [query_heads, n], not pooled
  const DeviceMatrix& attention(int64_t window, WindowReduction reduction);
  /// window_change_scores: [query_heads, n], not pooled
  const DeviceMatrix& changes(int64_t window, Change change, Space space);
  /// ProjectedNorms of the prompt's values: [query_heads, n]
  const DeviceMatrix& norms(Norm norm);
  /// Valid as long as this object.
  ProjectedNorms<T> projected_norms(Norm norm);
  /// squared_norms: [query_heads, n]
  const DeviceMatrix& value_lengths(Space space);
  /// prompt_averages, over all recorded queries
  AveragedScores& averages(const PredictedScores& options);
  /// Valid as long as this object.
  ///
  /// operation  whose time includes theirs, if they are not known yet
  SpaceMatrices matrices(Space space, const char* operation = "window_scores");

 private:
  DeviceLayer<T> layer_;
  Queue& queue_;
  std::map<int64_t, DeviceMatrix> log_sum_exp_;                            // by window
  std::map<std::pair<int64_t, WindowReduction>, DeviceMatrix> attention_;  // by window
  std::map<std::tuple<int64_t, Change, Space>, DeviceMatrix> changes_;     // by window
  std::map<Norm, DeviceMatrix> norms_;
  std::map<Space, DeviceMatrix> value_lengths_;
  std::map<std::pair<double, ScoreKind>, AveragedScores> averages_;
  DeviceMatrix gram_, factor_;  // [query_heads * head_dim, head_dim]
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
