#include "gram_factor.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "product.hpp"
#include "vectors.hpp"

namespace kvbound::reference {
namespace {

// The lower triangular factor of a symmetric matrix with positive pivots; a column is zero where its
// pivot is.
Matrix factor_of(const Matrix& matrix) {
  const int64_t n = matrix.rows();
  Matrix factor(n, n);
  for (int64_t c = 0; c < n; ++c) {
    const VectorView of_column = factor.row(c).first(static_cast<size_t>(c));
    for (int64_t k = c; k < n; ++k) {
      const double rest =
          matrix(k, c) - inner_product(factor.row(k).first(static_cast<size_t>(c)), of_column);
      factor(k, c) = k == c ? std::sqrt(std::max(rest, 0.0)) : factor(c, c) > 0 ? rest / factor(c, c) : 0;
    }
  }
  return factor;
}

// || R^-1 ||_F^2 of a lower triangular matrix; infinity where a number of the diagonal is 0.
double squared_norm_of_inverse(const Matrix& triangular) {
  const int64_t n = triangular.rows();
  Matrix inverse(n, n);  // transposed: row c is column c
  double sum = 0;
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t k = c; k < n; ++k) {
      const auto begun = static_cast<size_t>(k - c);
      const double known = inner_product(triangular.row(k).subspan(static_cast<size_t>(c), begun),
                                         VectorView(inverse.row(c)).subspan(static_cast<size_t>(c), begun));
      inverse(c, k) = ((k == c ? 1 : 0) - known) / triangular(k, k);
      sum += inverse(c, k) * inverse(c, k);
    }
  }
  return std::isfinite(sum) ? sum : std::numeric_limits<double>::infinity();
}

}  // namespace

GramFactor::GramFactor(MatrixView matrix) {
  Matrix gram(matrix.rows, matrix.rows);
  multiply_transposed(matrix, matrix, gram.view());
  for (int64_t k = 0; k < matrix.rows; ++k) {
    lengths_.push_back(std::sqrt(gram(k, k)));
    gram(k, k) *= 1 + gram_shift(matrix.rows, matrix.cols);
  }
  factor_ = factor_of(gram);
  set_deviation(matrix.cols);
  factor_ = absolute(factor_);
}

// README.md, "Norms by the factor of a Gram matrix".
void GramFactor::set_deviation(int64_t columns) {
  const int64_t inner = factor_.rows();
  Matrix scaled = factor_;
  for (int64_t k = 0; k < inner; ++k) {
    for (double& number : scaled.row(k)) number /= lengths_[static_cast<size_t>(k)];
  }
  constexpr double kRounding = 1.01;
  const double moved = kRounding * static_cast<double>(inner) * 2 * gram_factor_error(inner, columns) *
                       squared_norm_of_inverse(scaled);
  deviation_ = moved < 0.25 ? kRounding * std::sqrt(2.0) * moved / (1 + std::sqrt(1 - 2 * moved))
                            : std::numeric_limits<double>::infinity();
}

std::vector<double> GramFactor::sizes(MatrixView rows) const {
  const Matrix of_rows = absolute(rows);
  Matrix products(rows.rows, rows.cols);
  multiply(of_rows, factor_, products.view());
  std::vector<double> sizes;
  for (int64_t j = 0; j < rows.rows; ++j) {
    const double whole = inner_product(of_rows.row(j), lengths_);
    sizes.push_back(whole > 0 ? std::min(whole, norm(products.row(j)) + deviation_ * whole) : 0);
  }
  return sizes;
}

}  // namespace kvbound::reference
