// Some columns or rows of a matrix, side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// [rows, columns]; none of a matrix that has none.
inline Matrix columns_of(MatrixView matrix, std::span<const int64_t> columns) {
  if (matrix.cols == 0) return {};
  Matrix result(matrix.rows, std::ssize(columns));
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (size_t j = 0; j < columns.size(); ++j) result.row(i)[j] = matrix(i, columns[j]);
  }
  return result;
}

/// [rows, cols]
inline Matrix rows_of(MatrixView matrix, std::span<const int64_t> rows) {
  Matrix result(std::ssize(rows), matrix.cols);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::ranges::copy(matrix.row(rows[i]), result.row(i).begin());
  }
  return result;
}

}  // namespace kvbound::reference
