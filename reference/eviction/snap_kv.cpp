#include "snap_kv.hpp"

#include <algorithm>
#include <string>

#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/column_blocks.hpp>
#include <kvbound/reference/numerics/elementwise.hpp>

#include "obcache.hpp"
#include "selection.hpp"
#include "window_logits.hpp"

namespace kvbound::reference {

// The steps are those of the paper's Listing 1.
SnapKvSelection snap_kv(const LayerView& layer, const ObservationWindow& window, int64_t pool,
                        std::span<const int64_t> budgets, const WindowAttentionSums& attention_sums) {
  require_equal("budgets", std::ssize(budgets), "KV heads", layer.shape.kv_heads);
  const int64_t tokens = layer.prompt_tokens(), candidates = tokens - window.kept;
  SnapKvSelection result;
  // The window's queries attend to the whole prompt: the causal softmax of q K^T, and its mean over the
  // window. (The paper takes the sum, which selects the same entries.)
  const Matrix attention = window_mean(attention_sums(window.queries), window.queries);
  // Pooling: an entry's neighbours tend to be kept with it.
  result.head_scores = max_pool(attention.view().middle_cols(0, candidates), pool);
  // The query heads that share a KV head select together.
  result.scores = group_mean(result.head_scores, layer.shape.group_size());
  for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
    // The top k of the prefix, and the whole window.
    const int64_t k = budgets[g] - window.kept;
    std::vector<int64_t> kept = select_top(result.scores.row(g), k);
    for (int64_t position = candidates; position < tokens; ++position) kept.push_back(position);
    result.kept.push_back(std::move(kept));
  }
  return result;
}

Matrix window_mean(const Matrix& sums, int64_t window) { return quotient(sums, static_cast<double>(window)); }

Matrix window_attention(const LayerView& layer, int64_t window) {
  return window_mean(window_attention_sums(layer, window), window);
}

Matrix max_pool(MatrixView scores, int64_t width) {
  if (width < 1 || width % 2 == 0) {
    throw ShapeMismatch("a pool of width " + std::to_string(width) + " has no middle; expected an odd width");
  }
  const int64_t reach = (width - 1) / 2;
  Matrix pooled = Matrix::for_overwrite(scores.rows, scores.cols);
  for_column_blocks(pooled.view(), [&](int64_t r, int64_t begin, std::span<double> block) {
    const VectorView row = scores.row(r);
    for (size_t i = 0; i < block.size(); ++i) {
      const int64_t j = begin + static_cast<int64_t>(i);
      const int64_t first = std::max<int64_t>(0, j - reach), last = std::min(scores.cols - 1, j + reach);
      block[i] = *std::max_element(row.begin() + first, row.begin() + last + 1);
    }
  });
  return pooled;
}

Matrix group_mean(MatrixView scores, int64_t group_size) {
  Matrix mean = group_sum(scores, group_size);
  for (int64_t g = 0; g < mean.rows(); ++g) divide(mean.row(g), static_cast<double>(group_size));
  return mean;
}

}  // namespace kvbound::reference
