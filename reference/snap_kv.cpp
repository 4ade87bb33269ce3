#include "snap_kv.hpp"

#include <algorithm>

#include "attention.hpp"
#include "parallel.hpp"
#include "shape_check.hpp"

namespace kvbound::reference {
namespace {

// Queries worked on at a time: bounds the weights in memory to this many rows.
constexpr int64_t kQueryBlock = 32;

}  // namespace

void visit_window_attention(const LayerView& layer, int64_t query_head, int64_t window,
                            const std::function<void(MatrixView)>& visit) {
  if (window < 1 || window > layer.window_queries()) {
    throw ShapeMismatch("window is " + std::to_string(window) + " but " +
                        std::to_string(layer.window_queries()) + " prompt queries are recorded");
  }
  const MatrixView keys = layer.keys.slice(layer.shape.kv_head_of(query_head));
  const MatrixView queries =
      layer.queries.slice(query_head).middle_rows(layer.window_queries() - window, window);
  for (int64_t first = 0; first < window; first += kQueryBlock) {
    const MatrixView block = queries.middle_rows(first, std::min(kQueryBlock, window - first));
    visit(attention_weights(block, keys, layer.scale, layer.prompt_tokens() - window + first));
  }
}

Matrix window_attention(const LayerView& layer, int64_t window) {
  Matrix mean(layer.shape.query_heads, layer.prompt_tokens());
  parallel_for(layer.shape.query_heads, [&](int64_t head) {
    const std::span<double> sum = mean.row(head);
    visit_window_attention(layer, head, window, [&](MatrixView weights) {
      for (int64_t i = 0; i < weights.rows; ++i) {
        const VectorView row = weights.row(i);
        for (size_t j = 0; j < row.size(); ++j) sum[j] += row[j];
      }
    });
    for (double& entry : sum) entry /= static_cast<double>(window);
  });
  return mean;
}

Matrix max_pool(MatrixView scores, int64_t width) {
  if (width < 1 || width % 2 == 0) {
    throw ShapeMismatch("a pool of width " + std::to_string(width) + " has no middle; expected an odd width");
  }
  const int64_t reach = (width - 1) / 2;
  Matrix pooled(scores.rows, scores.cols);
  for (int64_t r = 0; r < scores.rows; ++r) {
    const VectorView row = scores.row(r);
    for (int64_t j = 0; j < scores.cols; ++j) {
      const int64_t first = std::max<int64_t>(0, j - reach);
      const int64_t last = std::min(scores.cols - 1, j + reach);
      pooled(r, j) = *std::max_element(row.begin() + first, row.begin() + last + 1);
    }
  }
  return pooled;
}

Matrix group_mean(MatrixView scores, int64_t group_size) {
  if (group_size < 1 || scores.rows % group_size != 0) {
    throw ShapeMismatch(std::to_string(scores.rows) + " query heads cannot be shared out in groups of " +
                        std::to_string(group_size));
  }
  Matrix mean(scores.rows / group_size, scores.cols);
  for (int64_t h = 0; h < scores.rows; ++h) {
    const VectorView row = scores.row(h);
    const std::span<double> sum = mean.row(h / group_size);
    for (size_t j = 0; j < row.size(); ++j) sum[j] += row[j];
  }
  for (int64_t g = 0; g < mean.rows(); ++g) {
    for (double& entry : mean.row(g)) entry /= static_cast<double>(group_size);
  }
  return mean;
}

}  // namespace kvbound::reference
