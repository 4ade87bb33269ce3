// Sums over the rows of a matrix, column by column, and what rounding errors of such sums depend on.
#pragma once

#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// Of the terms t_j = weights[j] rows[j, c], [columns] each, added in the order of rows.
struct WeightedColumns {
  std::vector<double> sums;     ///< sum_j t_j
  std::vector<double> squares;  ///< sum_j t_j^2
  std::vector<double> low,
      high;  ///< the least and the largest of the sums of the first few terms, that of none included
  std::vector<double> signs;    ///< sum_j sign(t_j)
  std::vector<double> aligned;  ///< sum_j sign(t_j) (t_0 + ... + t_j)
};

/// weights  [rows]
WeightedColumns weighted_columns(MatrixView rows, VectorView weights);

/// The least and the largest number of each column, [columns] each; infinities for no rows.
struct ColumnRanges {
  std::vector<double> least, most;
};
ColumnRanges column_ranges(MatrixView rows);

/// result[k, c] = sum_j factors[k][j] |rows[j, c] - centre[c]|
///
/// centre   [columns]
/// factors  [rows] each; one to four
/// returns  [factors, columns]
Matrix weighted_distances(MatrixView rows, VectorView centre, std::span<const VectorView> factors);

/// result[j] = sum_c rows[j, c] direction[c], in kLanes partial sums.   returns [rows]
std::vector<double> row_products(MatrixView rows, VectorView direction);

}  // namespace kvbound::reference
