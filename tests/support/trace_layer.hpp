// Layers as a trace holds them, for tests of records.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <kvbound/traces/trace.hpp>

#include "random_layer.hpp"

namespace kvbound::test {

/// A random layer in the form in which a trace holds it.
inline traces::Layer trace_layer(RandomLayer random) {
  traces::Layer layer;
  layer.shape = random.shape;
  layer.scale = random.view().scale;
  layer.prompt_tokens = random.tokens;
  layer.window_queries = random.window_queries;
  layer.keys = std::move(random.all_keys);
  layer.values = std::move(random.all_values);
  layer.queries = std::move(random.all_queries);
  layer.output_projection = std::move(random.output_projection);
  return layer;
}

/// A random layer with this scale, drawn number by number in the order keys, values, queries, projection.
inline traces::Layer random_trace_layer(const LayerShape& shape, double scale, int64_t prompt_tokens,
                                        int64_t window_queries, int64_t steps, uint64_t seed) {
  Random random(seed);
  traces::Layer layer;
  layer.shape = shape;
  layer.scale = scale;
  layer.prompt_tokens = prompt_tokens;
  layer.window_queries = window_queries;
  layer.keys = random.tensor(shape.kv_heads, prompt_tokens + steps, shape.head_dim);
  layer.values = random.tensor(shape.kv_heads, prompt_tokens + steps, shape.head_dim);
  layer.queries = random.tensor(shape.query_heads, window_queries + steps, shape.head_dim);
  layer.output_projection = random.matrix(shape.query_heads * shape.head_dim, shape.model_dim);
  return layer;
}

/// One head of dimension 1 with these numbers.
inline Tensor column(const std::vector<double>& numbers) {
  Tensor tensor(1, std::ssize(numbers), 1);
  std::ranges::copy(numbers, tensor.numbers().begin());
  return tensor;
}

/// The layer as seen by an implementation that stores its inputs in single precision.
inline traces::Layer stored_in_single_precision(traces::Layer layer) {
  const auto round = [](std::span<double> numbers) {
    for (double& number : numbers) number = static_cast<float>(number);
  };
  round(layer.keys.numbers());
  round(layer.values.numbers());
  round(layer.queries.numbers());
  for (int64_t i = 0; i < layer.output_projection.rows(); ++i) round(layer.output_projection.row(i));
  return layer;
}

/// A layer that can be computed by hand, with one query head per KV head and one recorded prompt query: every
/// query's attention is proportional to the entries' weights, and an entry's projected value is its value.
///
/// weights  [kv_heads][tokens + steps], > 0
/// values   likewise; empty: all 1
inline traces::Layer weighted_layer(int64_t tokens, const std::vector<std::vector<double>>& weights,
                                    const std::vector<std::vector<double>>& values = {}) {
  const auto heads = std::ssize(weights), entries = std::ssize(weights.front());
  traces::Layer layer;
  layer.shape = {heads, heads, 1, 1};
  layer.prompt_tokens = tokens;
  layer.window_queries = 1;
  layer.keys = layer.values = Tensor(heads, entries, 1);
  layer.queries = Tensor(heads, 1 + entries - tokens, 1);
  for (double& query : layer.queries.numbers()) query = 1;
  for (int64_t g = 0; g < heads; ++g) {
    for (int64_t i = 0; i < entries; ++i) {
      layer.keys.slice(g)(i, 0) = std::log(weights[g][i]);
      layer.values.slice(g)(i, 0) = values.empty() ? 1 : values[g][i];
    }
    layer.output_projection.append_row(std::vector{1.0});
  }
  return layer;
}

}  // namespace kvbound::test
