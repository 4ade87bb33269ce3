#include "columns.hpp"

#include <algorithm>

#include <kvbound/reference/core/parallel.hpp>

#include "token_blocks.hpp"

namespace kvbound::reference {

Matrix columns_of(MatrixView matrix, std::span<const int64_t> columns) {
  if (matrix.cols == 0) return {};
  Matrix result = Matrix::for_overwrite(matrix.rows, std::ssize(columns));
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (size_t j = 0; j < columns.size(); ++j) result.row(i)[j] = matrix(i, columns[j]);
  }
  return result;
}

Matrix rows_of(MatrixView matrix, std::span<const int64_t> rows) {
  Matrix result = Matrix::for_overwrite(std::ssize(rows), matrix.cols);
  parallel_for(token_blocks(result.rows()), [&](int64_t b) {
    for (int64_t i = b * kTokenBlock; i < std::min(result.rows(), (b + 1) * kTokenBlock); ++i) {
      std::ranges::copy(matrix.row(rows[i]), result.row(i).begin());
    }
  });
  return result;
}

}  // namespace kvbound::reference
