#include "gram_norms.hpp"

#include <cmath>
#include <limits>

#include "product.hpp"
#include "vectors.hpp"

namespace kvbound::reference {

GramNorms::GramNorms(MatrixView matrix)
    : gram_(Matrix::for_overwrite(matrix.rows, matrix.rows)), columns_(static_cast<double>(matrix.cols)) {
  multiply_transposed(matrix, matrix, gram_.view());
  for (int64_t c = 0; c < matrix.rows; ++c) lengths_.push_back(std::sqrt(gram_(c, c)));
}

// A bound on the error of x G x^T. The factor covers the rounding of this function, of the lengths,
// and gamma's denominator.
double GramNorms::squared_error(VectorView row) const {
  constexpr double kUnit = 0x1p-53, kUnderflow = 0x1p-1074, kRounding = 1.01;
  const auto inner = static_cast<double>(row.size());
  const double size =
      detail::partial_sums(row.size(), [&](size_t c) { return std::abs(row[c]) * lengths_[c]; });
  const double sum = detail::partial_sums(row.size(), [&](size_t c) { return std::abs(row[c]); });
  const double rounding = (columns_ + 2 * inner) * kUnit * size * size;
  const double underflow = (columns_ * sum * sum + 2 * inner * sum + inner) * kUnderflow;
  return kRounding * (rounding + underflow);
}

void GramNorms::fill(MatrixView rows, MutableMatrixView products, std::span<double> norms) const {
  multiply(rows, gram_, products);
  for (size_t i = 0; i < norms.size(); ++i) {
    const VectorView row = rows.row(static_cast<int64_t>(i));
    const double square = inner_product(row, products.row(static_cast<int64_t>(i)));
    constexpr double kLeast = 0x1p-960;  // below it, the bound itself may underflow
    const bool is_accurate = kLeast <= square && square < std::numeric_limits<double>::infinity() &&
                             squared_error(row) <= kGramNormError * square;
    norms[i] = is_accurate ? std::sqrt(square) : std::numeric_limits<double>::quiet_NaN();
  }
}

}  // namespace kvbound::reference
