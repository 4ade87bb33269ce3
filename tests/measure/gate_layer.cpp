#include "gate_layer.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include <kvbound/traces/portable_random.hpp>

namespace kvbound::measure {
namespace {

const GateShape kLarge{{.query_heads = 32, .kv_heads = 8, .head_dim = 128, .model_dim = 4096}, 32768, 32};
// With ragged tiles of tokens and of columns.
const GateShape kTiny{{.query_heads = 8, .kv_heads = 2, .head_dim = 64, .model_dim = 72}, 200, 9};

// 30,000 entries: two tiles in a split of 264 or 396 blocks, one in a split of 528.
const GateShape kTinySplits{{.query_heads = 24, .kv_heads = 6, .head_dim = 8, .model_dim = 1}, 5000, 1};

bool& tiny() {
  static bool asked_for = false;
  return asked_for;
}

}  // namespace

double GateShape::scale() const { return 1 / std::sqrt(static_cast<double>(layer.head_dim)); }

bool is_tiny() { return tiny(); }
const GateShape& gate_shape() { return is_tiny() ? kTiny : kLarge; }
const GateShape& split_shape() { return is_tiny() ? kTinySplits : kLarge; }

bool read_gate_arguments(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    if (std::string_view(arguments[i]) != "--tiny") return false;
    tiny() = true;
  }
  return true;
}

GateTensor gate_keys(const GateShape& shape) {
  return {1, shape.layer.kv_heads, shape.tokens, shape.layer.head_dim, 2};
}

GateTensor gate_values(const GateShape& shape) {
  return {2, shape.layer.kv_heads, shape.tokens, shape.layer.head_dim, 1};
}

GateTensor gate_queries(int64_t window) {
  const LayerShape& layer = gate_shape().layer;
  return {3, layer.query_heads, window, layer.head_dim, 2};
}

GateTensor gate_projection() {
  const LayerShape& layer = gate_shape().layer;
  return {4, layer.query_heads, layer.head_dim, layer.model_dim,
          1 / std::sqrt(static_cast<double>(layer.model_dim))};
}

Tensor slices_of(TensorView tensor, const std::vector<int64_t>& slices) {
  Tensor some(std::ssize(slices), tensor.rows, tensor.cols);
  for (size_t s = 0; s < slices.size(); ++s) {
    for (int64_t i = 0; i < tensor.rows; ++i) {
      std::ranges::copy(tensor.slice(slices[s]).row(i), some.slice(static_cast<int64_t>(s)).row(i).begin());
    }
  }
  return some;
}

Tensor rows_of(TensorView tensor, const std::vector<int64_t>& rows) {
  Tensor some(tensor.slices, std::ssize(rows), tensor.cols);
  for (int64_t s = 0; s < tensor.slices; ++s) {
    for (size_t i = 0; i < rows.size(); ++i) {
      std::ranges::copy(tensor.slice(s).row(rows[i]), some.slice(s).row(static_cast<int64_t>(i)).begin());
    }
  }
  return some;
}

std::vector<int64_t> sampled(int64_t count) {
  constexpr int64_t kTile = 64, kPairs = 12;
  const traces::Stream random(5);
  std::set<int64_t> places{0, count - 1};
  for (uint64_t i = 0; i < kPairs; ++i) {
    const auto at = [&](uint64_t index) {
      return static_cast<int64_t>(random.uniform(index) * static_cast<double>(count));
    };
    const int64_t edge = at(2 * i) / kTile * kTile;
    places.insert({std::max<int64_t>(edge - 1, 0), edge, at(2 * i + 1)});
  }
  return {places.begin(), places.end()};
}

}  // namespace kvbound::measure
