#include "prefill.hpp"

#include <algorithm>
#include <cmath>

namespace kvbound::sim {
namespace {

// Copies rows; numbers in single precision are widened.
template <class T>
void copy_rows(BasicMatrixView<const T> from, MutableMatrixView to) {
  for (int64_t i = 0; i < from.rows; ++i) std::ranges::copy(from.row(i), to.row(i).begin());
}

// W^O [query_heads * head_dim, model_dim] of a layer, from a weight that has it transposed.
Matrix output_projection(const traces::Weight& weight) {
  std::vector<float> numbers(weight.rows * weight.cols);
  weight.read(0, numbers);
  Matrix projection(weight.cols, weight.rows);
  for (int64_t r = 0; r < weight.rows; ++r) {
    for (int64_t c = 0; c < weight.cols; ++c) projection(c, r) = numbers[r * weight.cols + c];
  }
  return projection;
}

}  // namespace

Prefill::Prefill(const traces::Checkpoint& checkpoint, std::span<const int64_t> tokens, int64_t window,
                 Dtype stored, const std::function<void(int64_t)>& advance)
    : checkpoint_(checkpoint),
      config_(checkpoint.config()),
      decoder_(checkpoint, std::ssize(tokens), stored),
      window_(window),
      queries_(config_.layers) {
  logits_ = decoder_.run(tokens, [&](const traces::Attended& attended) {
    std::vector<float>& own = queries_[attended.layer];
    for (int64_t i = attended.queries.rows - window_; i < attended.queries.rows; ++i)
      own.insert(own.end(), attended.queries.row(i).begin(), attended.queries.row(i).end());
    if (advance) advance(attended.queries.rows);
  });
}

SingleMatrixView Prefill::queries(int64_t layer) const {
  return {queries_[layer].data(), window_, config_.query_heads * config_.head_dim};
}

traces::Layer Prefill::layer(int64_t index, const DecodeSteps& steps) const {
  const int64_t n = decoder_.position(), count = steps.keys.view().rows, head_dim = config_.head_dim;
  traces::Layer layer;
  layer.index = index;
  layer.shape = {config_.query_heads, steps.keys.view().slices, head_dim, config_.model_dim};
  layer.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  layer.prompt_tokens = n;
  layer.window_queries = window_;
  layer.keys = Tensor(layer.shape.kv_heads, n + count, head_dim);
  layer.values = layer.keys;
  layer.queries = Tensor(config_.query_heads, window_ + count, head_dim);
  const std::vector<traces::CachedHead> cache = decoder_.cache(index);
  for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
    const traces::CachedHead& head = cache[g * config_.kv_heads / layer.shape.kv_heads];
    copy_rows(head.keys, layer.keys.slice(g));
    copy_rows(head.values, layer.values.slice(g));
    copy_rows(steps.keys.slice(g), layer.keys.slice(g).middle_rows(n, count));
    copy_rows(steps.values.slice(g), layer.values.slice(g).middle_rows(n, count));
  }
  for (int64_t h = 0; h < config_.query_heads; ++h) {
    copy_rows(queries(index).middle_cols(h * head_dim, head_dim), layer.queries.slice(h));
    copy_rows(steps.queries.slice(h), layer.queries.slice(h).middle_rows(window_, count));
  }
  layer.output_projection = output_projection(checkpoint_.layers()[index].output);
  return layer;
}

}  // namespace kvbound::sim
