// Copies of chosen columns or rows of a matrix.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The given columns, in the given order.   returns [rows, columns]; empty for a matrix without columns
inline Matrix columns_of(MatrixView matrix, std::span<const int64_t> columns) {
  if (matrix.cols == 0) return {};
  Matrix result(matrix.rows, std::ssize(columns));
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (size_t j = 0; j < columns.size(); ++j) result.row(i)[j] = matrix(i, columns[j]);
  }
  return result;
}

/// The given rows, in the given order.   returns [rows, cols]
inline Matrix rows_of(MatrixView matrix, std::span<const int64_t> rows) {
  Matrix result(std::ssize(rows), matrix.cols);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::ranges::copy(matrix.row(rows[i]), result.row(i).begin());
  }
  return result;
}

}  // namespace kvbound::reference
