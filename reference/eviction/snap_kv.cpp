#include "snap_kv.hpp"

#include <algorithm>
#include <string>

#include <kvbound/reference/core/shape_check.hpp>

#include "h2o.hpp"
#include "obcache.hpp"
#include "window_logits.hpp"

namespace kvbound::reference {

void visit_window_attention(const LayerView& layer, int64_t kv_head, int64_t window,
                            const std::function<void(int64_t query_head, VectorView weights)>& visit) {
  WindowLogits logits(layer, window);
  for (const HeadBlock& heads : head_blocks(layer.shape, kv_head)) {
    visit_exponentials(logits, heads, [&](int64_t query_head, std::span<double> row, double sum) {
      for (double& entry : row) entry /= sum;
      visit(query_head, row);
    });
  }
}

Matrix window_mean(Matrix sums, int64_t window) {
  for (int64_t h = 0; h < sums.rows(); ++h) {
    for (double& entry : sums.row(h)) entry /= static_cast<double>(window);
  }
  return sums;
}

Matrix window_attention(const LayerView& layer, int64_t window) {
  return window_mean(accumulated_attention(layer, window), window);
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
  Matrix mean = group_sum(scores, group_size);
  for (int64_t g = 0; g < mean.rows(); ++g) {
    for (double& entry : mean.row(g)) entry /= static_cast<double>(group_size);
  }
  return mean;
}

}  // namespace kvbound::reference
