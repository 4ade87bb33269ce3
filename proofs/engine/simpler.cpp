#include "simpler.hpp"

#include <algorithm>
#include <cmath>

namespace kvbound::proofs {
namespace {

using Positions = std::vector<int64_t>;

Matrix without_row(const Matrix& matrix, int64_t row, int64_t period) {
  Matrix result;
  for (int64_t i = 0; i < matrix.rows(); ++i) {
    if (i % period != row) result.append_row(matrix.row(i));
  }
  return result;
}

Matrix without_column(const Matrix& matrix, int64_t column) {
  Matrix result(matrix.rows(), matrix.cols() - 1);
  for (int64_t i = 0; i < matrix.rows(); ++i) {
    for (int64_t j = 0; j < result.cols(); ++j) result(i, j) = matrix(i, j < column ? j : j + 1);
  }
  return result;
}

Positions without_token(const Positions& positions, int64_t token) {
  Positions result;
  for (const int64_t position : positions) {
    if (position != token) result.push_back(position < token ? position : position - 1);
  }
  return result;
}

// Removes a query's row of the logits and, in instances for merging, its
// row and column of the query vectors, which remain lower triangular.
void drop_query(Instance& instance, int64_t row) {
  instance.logits = without_row(instance.logits, row, instance.logits.rows());
  if (instance.merges()) {
    instance.query_vectors =
        without_column(without_row(instance.query_vectors, row, instance.query_vectors.rows()), row);
  }
}

void drop_tokens(const Instance& instance, std::vector<Instance>& result) {
  for (int64_t j = instance.tokens() - 1; j >= 0 && instance.tokens() > 1; --j) {
    Instance next = instance;
    next.stage_one = without_token(instance.stage_one, j);
    if (next.stage_one.empty()) continue;
    next.kept = without_token(instance.kept, j);
    next.logits = without_column(instance.logits, j);
    next.values = without_row(instance.values, j, instance.tokens());
    if (instance.merges()) next.votes.erase(next.votes.begin() + j);
    result.push_back(std::move(next));
  }
}

void drop_queries_and_dimensions(const Instance& instance, std::vector<Instance>& result) {
  const int64_t queries = instance.queries(), head_dim = instance.values.cols();
  for (int64_t h = 0; h < instance.query_heads && instance.query_heads > 1; ++h) {
    Instance next = instance;
    --next.query_heads;
    for (int64_t i = queries - 1; i >= 0; --i) drop_query(next, h * queries + i);
    for (int64_t c = head_dim - 1; c >= 0; --c) {
      next.output_projection =
          without_row(next.output_projection, h * head_dim + c, next.output_projection.rows());
    }
    result.push_back(std::move(next));
  }
  for (int64_t i = 0; i < queries && queries > 1; ++i) {
    Instance next = instance;
    for (int64_t h = instance.query_heads - 1; h >= 0; --h) drop_query(next, h * queries + i);
    result.push_back(std::move(next));
  }
  for (int64_t c = 0; c < head_dim && head_dim > 1; ++c) {
    Instance next = instance;
    next.values = without_column(instance.values, c);
    next.output_projection = without_row(instance.output_projection, c, head_dim);
    result.push_back(std::move(next));
  }
  for (int64_t c = 0; c < instance.output_projection.cols() && instance.output_projection.cols() > 1; ++c) {
    Instance next = instance;
    next.output_projection = without_column(instance.output_projection, c);
    result.push_back(std::move(next));
  }
}

void drop_choices(const Instance& instance, std::vector<Instance>& result) {
  for (const int64_t position : instance.kept) {
    Instance next = instance;
    if (std::erase(next.stage_one, position) == 0) {
      std::erase(next.kept, position);
    } else if (next.stage_one.empty()) {
      continue;
    }
    result.push_back(std::move(next));
  }
  if (instance.epsilon > 0) {
    result.push_back(instance);
    result.back().epsilon = 0;
  }
  for (const double ema : {0.0, 0.5}) {
    if (ema >= instance.ema) break;
    result.push_back(instance);
    result.back().ema = ema;
  }
}

// Rounder numbers than x, the roundest first: 0, |x|, x truncated to multiples of 1,
// 1/2, ..., smaller integers.
std::vector<double> rounder(double x) {
  std::vector<double> result;
  if (x == 0) return std::signbit(x) ? std::vector<double>{0} : result;
  result.push_back(0);
  if (x < 0) result.push_back(-x);
  for (const double step : {1.0, 0.5, 0.25, 0.125}) {
    const double cut = std::trunc(x / step) * step;
    if (cut != x && cut != 0) result.push_back(cut);
  }
  if (x == std::trunc(x) && std::abs(x) > 1) {
    result.push_back(std::trunc(x / 2));
    result.push_back(x - std::copysign(1, x));
  }
  return result;
}

void round_numbers(const Instance& instance, Matrix Instance::*matrix, std::vector<Instance>& result) {
  for (int64_t i = 0; i < (instance.*matrix).rows(); ++i) {
    for (int64_t j = 0; j < (instance.*matrix).cols(); ++j) {
      for (const double number : rounder((instance.*matrix)(i, j))) {
        result.push_back(instance);
        (result.back().*matrix)(i, j) = number;
      }
    }
  }
}

// Fewer votes, and query vectors nearer to unit vectors.
void simplify_merging(const Instance& instance, std::vector<Instance>& result) {
  for (size_t j = 0; j < instance.votes.size(); ++j) {
    for (const double votes : {1.0, 2.0, std::trunc(instance.votes[j] / 2)}) {
      if (votes < 1 || votes >= instance.votes[j]) continue;
      result.push_back(instance);
      result.back().votes[j] = votes;
    }
  }
  for (int64_t r = 0; r < instance.query_vectors.rows(); ++r) {
    for (int64_t c = 0; c < r; ++c) {
      for (const double number : rounder(instance.query_vectors(r, c))) {
        result.push_back(instance);
        result.back().query_vectors(r, c) = number;
      }
    }
    if (instance.query_vectors(r, r) == 1) continue;
    result.push_back(instance);
    result.back().query_vectors(r, r) = 1;
  }
}

}  // namespace

std::vector<Instance> simpler(const Instance& instance) {
  std::vector<Instance> result;
  drop_tokens(instance, result);
  drop_queries_and_dimensions(instance, result);
  drop_choices(instance, result);
  for (const auto matrix : {&Instance::logits, &Instance::values, &Instance::output_projection})
    round_numbers(instance, matrix, result);
  simplify_merging(instance, result);
  return result;
}

}  // namespace kvbound::proofs
