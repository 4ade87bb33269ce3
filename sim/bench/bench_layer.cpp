#include "bench_layer.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include <kvbound/reference/core/parallel.hpp>

namespace kvbound::sim {
namespace {

using reference::parallel_for;

void fill(std::span<double> numbers, const traces::Stream& random, double size) {
  constexpr int64_t kBlock = 65536;
  const auto count = std::ssize(numbers);
  parallel_for((count + kBlock - 1) / kBlock, [&](int64_t block) {
    for (int64_t i = block * kBlock; i < std::min(count, (block + 1) * kBlock); ++i) {
      const auto index = static_cast<uint64_t>(i);
      const double spike = random.bits(~index) % 1024 == 0 ? 16 : 1;
      numbers[i] = size * spike * random.normal(index);
    }
  });
}

}  // namespace

Matrix random_matrix(int64_t rows, int64_t cols, const traces::Stream& random) {
  Matrix matrix(rows, cols);
  fill({matrix.data(), matrix.numbers().size()}, random, 1 / std::sqrt(static_cast<double>(cols)));
  return matrix;
}

Tensor random_tensor(int64_t slices, int64_t rows, int64_t cols, const traces::Stream& random) {
  Tensor tensor(slices, rows, cols);
  fill(tensor.numbers(), random, 1);
  return tensor;
}

BenchLayer::BenchLayer(const BenchOptions& options)
    : shape(options.shape.layer),
      keys(random_tensor(shape.kv_heads, options.shape.tokens, shape.head_dim, random(options, 1))),
      values(random_tensor(shape.kv_heads, options.shape.tokens, shape.head_dim, random(options, 2))),
      queries(random_tensor(shape.query_heads, kWindow, shape.head_dim, random(options, 3))),
      output_projection(
          random_matrix(shape.query_heads * shape.head_dim, shape.model_dim, random(options, 4))) {}

LayerView BenchLayer::view() const {
  return {
      shape, 1 / std::sqrt(static_cast<double>(shape.head_dim)), keys, values, queries, output_projection};
}

std::vector<int64_t> bench_budgets(const BenchOptions& options) {
  return std::vector<int64_t>(options.shape.layer.kv_heads, options.shape.tokens / 5);
}

}  // namespace kvbound::sim
