#include "attention.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/elementwise.hpp>
#include <kvbound/reference/numerics/exponential.hpp>
#include <kvbound/reference/numerics/largest.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/token_products.hpp>

namespace kvbound::reference {
namespace {

// Softmax in place; returns the log-sum-exp.
double softmax(std::span<double> logits) {
  if (logits.empty()) return -kInfinity;
  const Largest most = largest(logits);
  if (!most.all_finite()) require_finite("logits", logits);
  const double sum = exponentiate(logits, most.value);
  divide(logits, sum);
  return most.value + std::log(sum);
}

void require_logits(MatrixView queries, MatrixView keys, MutableMatrixView logits) {
  require_equal("columns of queries", queries.cols, "columns of keys", keys.cols);
  require_equal("rows of logits", logits.rows, "rows of queries", queries.rows);
  require_equal("columns of logits", logits.cols, "rows of keys", keys.rows);
}

}  // namespace

Matrix attention_logits(MatrixView queries, MatrixView keys, double scale) {
  Matrix logits(queries.rows, keys.rows);
  require_logits(queries, keys, logits.view());
  multiply_by_tokens(queries, keys, scale, logits.view(), [](int64_t, int64_t) {});
  return logits;
}

std::vector<double> attention_logits(MatrixView queries, MatrixView keys, double scale,
                                     std::span<const int64_t> visible, MutableMatrixView logits) {
  require_equal("visible", std::ssize(visible), "rows of queries", queries.rows);
  for ([[maybe_unused]] const int64_t seen : visible) assert(0 <= seen && seen <= keys.rows);
  require_logits(queries, keys, logits);
  std::vector<double> result(visible.size(), -kInfinity);
  multiply_by_tokens(queries, keys, scale, logits, [&](int64_t first, int64_t count) {
    for (size_t i = 0; i < visible.size(); ++i) {
      const int64_t seen = std::min(count, visible[i] - first);
      if (seen <= 0) continue;
      const VectorView row = logits.row(i);
      const Largest most = largest(row.subspan(first, seen));
      if (!most.all_finite()) require_finite("logits", row.first(first + seen));
      result[i] = std::max(result[i], most.value);
    }
  });
  return result;
}

Matrix voted_logits(MatrixView logits, VectorView votes) {
  require_equal("votes", std::ssize(votes), "columns of logits", logits.cols);
  Matrix voted(logits.rows, logits.cols);
  std::vector<double> log_votes;
  for (const double vote : votes) log_votes.push_back(std::log(vote));
  for (int64_t i = 0; i < logits.rows; ++i) {
    for (size_t j = 0; j < votes.size(); ++j) voted.row(i)[j] = logits.row(i)[j] + log_votes[j];
  }
  return voted;
}

double log_sum_exp(VectorView logits) {
  if (logits.empty()) return -kInfinity;
  const double most = largest(logits).value;
  // Every logit is -infinity (the sum is 0) or NaN (the sum is NaN).
  if (most == -kInfinity) return std::log(exponential_sum(logits, 0));
  return most + std::log(exponential_sum(logits, most));
}

double softmax(VectorView logits, double largest, std::span<double> weights) {
  const double sum = exponentiate(logits, largest, weights);
  divide(weights, sum);
  return sum;
}

void causal_softmax(MutableMatrixView logits, int64_t first_position) {
  for (int64_t i = 0; i < logits.rows; ++i) {
    const int64_t visible = std::min(first_position + i + 1, logits.cols);
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
    require_equal("votes", std::ssize(votes), "rows of keys", keys.rows);
  }
  Matrix weights = attention_logits(queries, keys, scale);
  if (!votes.empty()) weights = voted_logits(weights, votes);
  AttentionOutput result{Matrix(queries.rows, values.cols), {}, {}};
  for (int64_t i = 0; i < queries.rows; ++i) {
    const std::span<double> row = weights.row(i);
    result.log_sum_exp.push_back(softmax(row));
  }
  multiply(weights, values, result.output.view());
  result.weights = std::move(weights);
  return result;
}

}  // namespace kvbound::reference
