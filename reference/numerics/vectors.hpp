// Sums over one vector or two, where a BLAS call would cost more than it saves.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {
namespace detail {

/// sum_c term(c) in eight independent partial sums, which the processor
/// can add in parallel; the order of additions depends on the size only.
template <class Term>
double partial_sums(size_t size, const Term& term) {
  constexpr size_t kParts = 8;
  double parts[kParts] = {};
  size_t c = 0;
  for (; c + kParts <= size; c += kParts) {
    for (size_t p = 0; p < kParts; ++p) parts[p] += term(c + p);
  }
  for (size_t p = 0; c < size; ++c, ++p) parts[p] += term(c);
  return ((parts[0] + parts[4]) + (parts[2] + parts[6])) + ((parts[1] + parts[5]) + (parts[3] + parts[7]));
}

}  // namespace detail

/// sum_c x_c y_c.   x, y: of the same size; 0 for no numbers
inline double inner_product(VectorView x, VectorView y) {
  return detail::partial_sums(x.size(), [&](size_t c) { return x[c] * y[c]; });
}

/// sum_c (x_c - y_c)^2.   x, y: of the same size; 0 for no numbers
inline double squared_distance(VectorView x, VectorView y) {
  return detail::partial_sums(x.size(), [&](size_t c) { return (x[c] - y[c]) * (x[c] - y[c]); });
}

/// || x ||_2; +infinity where the sum of squares overflows.
inline double norm(VectorView x) { return std::sqrt(inner_product(x, x)); }

/// || x - y ||_2; +infinity where the sum of squares overflows.
inline double distance(VectorView x, VectorView y) { return std::sqrt(squared_distance(x, y)); }

/// || x ||_inf; 0 for no numbers; NaNs are ignored.
inline double max_abs(VectorView x) {
  double largest = 0;
  for (const double number : x) largest = std::max(largest, std::abs(number));
  return largest;
}

/// | X |, element by element
inline Matrix absolute(MatrixView matrix) {
  Matrix result(matrix.rows, matrix.cols);
  for (int64_t i = 0; i < matrix.rows; ++i) {
    std::ranges::transform(matrix.row(i), result.row(i).begin(), [](double x) { return std::abs(x); });
  }
  return result;
}

/// sum_c x_c, added in order of the index.
inline double sum(VectorView x) {
  double result = 0;
  for (const double number : x) result += number;
  return result;
}

}  // namespace kvbound::reference
