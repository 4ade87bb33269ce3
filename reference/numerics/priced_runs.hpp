// Divisions of columns of numbers into runs that each cost something.
#pragma once

#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// For every column the most that a division of its numbers into runs of successive ones is worth.
///
///     best[c] = max over all divisions of sum_runs (|sum of the run's numbers| - prices[c])
///
/// terms    [rows, columns]
/// prices   [columns], >= 0
/// returns  [columns]; 0 for no rows
std::vector<double> priced_runs(MatrixView terms, VectorView prices);

}  // namespace kvbound::reference
