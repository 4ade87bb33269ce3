#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "product.hpp"
#include "shape_check.hpp"
#include "token_blocks.hpp"

namespace kvbound::reference {
namespace {

// Softmax in place; returns the log-sum-exp.
double softmax(std::span<double> logits) {
  require_finite("logits", logits);
  if (logits.empty()) return -std::numeric_limits<double>::infinity();
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (double& logit : logits) sum += logit = std::exp(logit - largest);
  for (double& weight : logits) weight /= sum;
  return largest + std::log(sum);
}

}  // namespace

Matrix attention_logits(MatrixView queries, MatrixView keys, double scale) {
  require_equal("columns of queries", queries.cols, "columns of keys", keys.cols);
  Matrix logits(queries.rows, keys.rows);
  Matrix block_logits(queries.rows, kTokenBlock);
  for (int64_t b = 0; b < token_blocks(keys.rows); ++b) {
    const TokenBlock block(keys, b);
    multiply_transposed(queries, block.rows, block_logits.view());
    for (int64_t i = 0; i < queries.rows; ++i) {
      for (int64_t j = 0; j < block.count; ++j) logits(i, block.first + j) = scale * block_logits(i, j);
    }
  }
  return logits;
}

double log_sum_exp(VectorView logits) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  if (logits.empty()) return kNothing;
  const double largest = *std::ranges::max_element(logits);
  if (largest == kNothing) return kNothing;
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

void causal_softmax(MutableMatrixView logits, int64_t first_position) {
  for (int64_t i = 0; i < logits.rows; ++i) {
    const auto visible = static_cast<size_t>(std::min(first_position + i + 1, logits.cols));
    const std::span<double> row = logits.row(i);
    softmax(row.first(visible));
    std::ranges::fill(row.subspan(visible), 0.0);
  }
}

Matrix attention_weights(MatrixView queries, MatrixView keys, double scale, int64_t first_position) {
  Matrix weights = attention_logits(queries, keys, scale);
  causal_softmax(weights.view(), first_position);
  return weights;
}

AttentionOutput attention(MatrixView queries, MatrixView keys, MatrixView values, double scale,
                          VectorView votes) {
  require_equal("rows of keys", keys.rows, "rows of values", values.rows);
  if (!votes.empty()) {
    require_equal("votes", static_cast<int64_t>(votes.size()), "rows of keys", keys.rows);
  }
  Matrix weights = attention_logits(queries, keys, scale);
  AttentionOutput result{Matrix(queries.rows, values.cols), {}};
  for (int64_t i = 0; i < queries.rows; ++i) {
    const std::span<double> row = weights.row(i);
    for (size_t j = 0; j < votes.size(); ++j) row[j] += std::log(votes[j]);
    result.log_sum_exp.push_back(softmax(row));
  }
  multiply(weights, values, result.output.view());
  return result;
}

}  // namespace kvbound::reference
