#include "layer_scores.hpp"

#include <cassert>
#include <optional>

#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/obcache.hpp>
#include <kvbound/cuda/eviction/value_space.hpp>

#include "joined_rows.hpp"
#include "scored_queries.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

TensorView as_slices(MatrixView matrix, int64_t rows) {
  assert(matrix.row_stride == matrix.cols);  // a slice's rows have no separate stride
  return {matrix.data, matrix.rows / rows, rows, matrix.cols, rows * matrix.row_stride};
}

// The number that `key` has in a map, made by make() on its first use.
template <class Key, class Make>
const DeviceMatrix& known(std::map<Key, DeviceMatrix>& all, const Key& key, const Make& make) {
  if (const auto found = all.find(key); found != all.end()) return found->second;
  return all.emplace(key, make()).first->second;
}

}  // namespace

template <Storage T>
UploadedLayer<T>::UploadedLayer(const LayerView& layer, Queue& queue)
    : shape_(layer.shape), scale_(layer.scale) {
  queue.run("upload", [&] {
    const auto stored = [&](TensorView numbers, const uint16_t* bits) {
      return StoredTensor<T>(numbers, queue.stream(), layer.bits.dtype, bits);
    };
    keys_ = stored(layer.keys, layer.bits.keys);
    values_ = stored(layer.values, layer.bits.values);
    queries_ = stored(layer.queries, layer.bits.queries);
    output_projection_ =
        stored(as_slices(layer.output_projection, layer.shape.head_dim), layer.bits.output_projection);
  });
}

template <Storage T>
UploadedLayer<T>::UploadedLayer(std::span<UploadedLayer* const> parts, Queue& queue)
    : shape_(joined(parts.front()->shape_, std::ssize(parts))),
      scale_(parts.front()->scale_),
      output_projection_(shape_.query_heads, shape_.head_dim, shape_.model_dim) {
  join(parts, &UploadedLayer::output_projection_, *this, queue.stream());
}

template <Storage T>
LayerScores<T>::LayerScores(std::span<LayerScores* const> parts, const DeviceLayer<T>& layer, Queue& queue)
    : layer_(layer), queue_(queue) {
  if (std::ranges::any_of(parts, [](const LayerScores* part) { return part->gram_.rows() == 0; })) return;
  gram_ = DeviceMatrix(layer.shape.query_heads * layer.shape.head_dim, layer.shape.head_dim);
  factor_ = DeviceMatrix(gram_.rows(), gram_.cols());
  join(parts, &LayerScores::gram_, *this, queue.stream());
  join(parts, &LayerScores::factor_, *this, queue.stream());
}

template <Storage T>
const DeviceMatrix& LayerScores<T>::log_sum_exp(int64_t window) {
  return known(log_sum_exp_, window, [&] {
    DeviceMatrix result(layer_.shape.query_heads, window);
    const int64_t bytes =
        window_log_sum_exp_workspace(layer_.shape.query_heads, window, layer_.prompt_tokens());
    queue_.run("window_attention", [&] {
      window_log_sum_exp<T>(layer_.window(window), result.data(), queue_.workspace(bytes), queue_.stream());
    });
    return result;
  });
}

template <Storage T>
const DeviceMatrix& LayerScores<T>::attention(int64_t window, WindowReduction reduction) {
  return known(attention_, {window, reduction}, [&] {
    const DeviceMatrix& log_sums = log_sum_exp(window);
    DeviceMatrix result(layer_.shape.query_heads, layer_.prompt_tokens());
    queue_.run("window_attention", [&] {
      window_attention<T>(layer_.window(window), log_sums.data(), reduction, result.data(), queue_.stream());
    });
    return result;
  });
}

template <Storage T>
void ProjectedNorms<T>::operator()(DeviceTensor<const T> values, float* norms, Stream stream) const {
  if (norm == Norm::l1) return projected_value_norms<T>(values, output_projection, norms, stream);
  projected_value_norms_l2<T>(values, factor, output_projection.slices, norms, stream);
}

template <Storage T>
const DeviceMatrix& LayerScores<T>::norms(Norm norm) {
  return known(norms_, norm, [&] {
    const ProjectedNorms<T> of = projected_norms(norm);
    DeviceMatrix result(layer_.shape.query_heads, layer_.prompt_tokens());
    queue_.run("projected_value_norms", [&] { of(layer_.values, result.data(), queue_.stream()); });
    return result;
  });
}

template <Storage T>
ProjectedNorms<T> LayerScores<T>::projected_norms(Norm norm) {
  const SpaceMatrices known =
      norm == Norm::l2 ? matrices(Space::projected, "projected_value_norms") : SpaceMatrices();
  return {layer_.output_projection, norm, known.factor};
}

template <Storage T>
SpaceMatrices LayerScores<T>::matrices(Space space, const char* operation) {
  if (space == Space::head) return {};
  if (gram_.rows() == 0) {
    const LayerShape& shape = layer_.shape;
    DeviceMatrix gram(shape.query_heads * shape.head_dim, shape.head_dim), factor(gram.rows(), gram.cols());
    const int64_t bytes = gram_matrices_workspace(shape.query_heads, shape.head_dim);
    queue_.run(operation, [&] {
      gram_matrices<T>(layer_.output_projection, gram.data(), factor.data(), queue_.workspace(bytes),
                       queue_.stream());
    });
    gram_ = std::move(gram);
    factor_ = std::move(factor);
  }
  return {gram_.data(), factor_.data()};
}

template <Storage T>
const DeviceMatrix& LayerScores<T>::value_lengths(Space space) {
  return known(value_lengths_, space, [&] {
    const float* const factor = matrices(space).factor;
    DeviceMatrix result(layer_.shape.query_heads, layer_.prompt_tokens());
    queue_.run("window_scores", [&] {
      squared_norms<T>(layer_.values, factor, layer_.shape.query_heads, result.data(), queue_.stream());
    });
    return result;
  });
}

template <Storage T>
const DeviceMatrix& LayerScores<T>::changes(int64_t window, Change change, Space space) {
  return known(changes_, {window, change, space}, [&] {
    const DeviceMatrix &log_sums = log_sum_exp(window), &lengths = value_lengths(space);
    DeviceMatrix result(layer_.shape.query_heads, layer_.prompt_tokens());
    WindowQueries<T> queries(layer_, window, queue_);
    if (change != Change::value) queries.measure(change, matrices(space).gram);
    queue_.run("window_scores", [&] {
      window_change_scores<T>(change, layer_.window(window), layer_.values, log_sums.data(),
                              queries.measured(), lengths.data(), result.data(), queue_.stream());
    });
    return result;
  });
}

template <Storage T>
AveragedScores& LayerScores<T>::averages(const PredictedScores& options) {
  const std::pair key(options.ema, options.scores);
  if (const auto found = averages_.find(key); found != averages_.end()) return found->second;
  const LayerShape& shape = layer_.shape;
  const int64_t window = layer_.queries.rows, tokens = layer_.prompt_tokens();
  AveragedScores averages(shape, tokens);
  const DeviceMatrix& log_sums = log_sum_exp(window);
  const int64_t bytes = prompt_averages_workspace<T>(shape.query_heads, shape.kv_heads, window, tokens);
  queue_.run("score_ema", [&] {
    prompt_averages<T>(options, layer_.window(window), log_sums.data(), averages.view(),
                       queue_.workspace(bytes), queue_.stream());
  });
  return averages_.emplace(key, std::move(averages)).first->second;
}

template class UploadedLayer<float>;
template class UploadedLayer<Float16>;
template class UploadedLayer<Bfloat16>;
template struct ProjectedNorms<float>;
template struct ProjectedNorms<Float16>;
template struct ProjectedNorms<Bfloat16>;
template class LayerScores<float>;
template class LayerScores<Float16>;
template class LayerScores<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
