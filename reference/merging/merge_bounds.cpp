#include "merge_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/token_blocks.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

namespace kvbound::reference {
namespace {

constexpr double kUnit = 0x1p-53;

std::vector<double> squared_norms(MatrixView rows) {
  std::vector<double> norms;
  for (int64_t i = 0; i < rows.rows; ++i) norms.push_back(inner_product(rows.row(i), rows.row(i)));
  return norms;
}

}  // namespace

double prediction_error(VectorView log_predicted, VectorView log_actual) {
  require_equal("log_predicted", std::ssize(log_predicted), "log_actual", std::ssize(log_actual));
  double largest = 0;
  for (size_t i = 0; i < log_actual.size(); ++i) {
    const double error = std::abs(std::expm1(log_predicted[i] - log_actual[i]));
    if (std::isnan(error)) return error;
    largest = std::max(largest, error);
  }
  return largest;
}

double later_bound(double prediction_error, double value_distance, double share) {
  if (!(prediction_error < 1)) return std::numeric_limits<double>::infinity();
  const double left = 1 - prediction_error;
  return 2 * prediction_error * (1 + prediction_error) * value_distance / (left * left) * share;
}

double sharp_later_bound(double prediction_error, double value_distance, int64_t clusters) {
  if (!(prediction_error < 1)) return std::numeric_limits<double>::infinity();
  const double first_order = prediction_error * value_distance;
  return clusters > 1 ? first_order
                      : first_order / (1 + std::sqrt((1 - prediction_error) * (1 + prediction_error)));
}

double largest_distance(MatrixView values, MatrixView others) {
  require_equal("columns of values", values.cols, "columns of others", others.cols);
  for (const MatrixView& rows : {values, others}) {
    for (int64_t i = 0; i < rows.rows; ++i) require_finite("values", rows.row(i));
  }
  const std::vector<double> value_norms = squared_norms(values), other_norms = squared_norms(others);
  // Rounding of ||x||^2 + ||y||^2 - 2 x . y, as a share of (||x|| + ||y||)^2 <= 2 (||x||^2 + ||y||^2), for
  // any order of the sums, plus that of the pairs' own squared distance.
  const double rounding = 2 * static_cast<double>(values.cols + 8) * kUnit * 2;
  double farthest = 0;  // squared
  Matrix products(kTokenBlock, kTokenBlock);
  for (int64_t a = 0; a < token_blocks(values.rows); ++a) {
    const TokenBlock left(values, a);
    for (int64_t b = 0; b < token_blocks(others.rows); ++b) {
      const TokenBlock right(others, b);
      multiply_transposed(left.rows, right.rows, products.view());
      for (int64_t i = 0; i < left.count; ++i) {
        const double own = value_norms[left.first + i];
        const double* row = products.row(i).data();
        for (int64_t j = 0; j < right.count; ++j) {
          const double both = own + other_norms[right.first + j];
          if (both * (1 + rounding) - 2 * row[j] <= farthest) continue;
          farthest =
              std::max(farthest, squared_distance(values.row(left.first + i), others.row(right.first + j)));
        }
      }
    }
  }
  return std::sqrt(farthest);
}

}  // namespace kvbound::reference
