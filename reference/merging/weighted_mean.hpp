// Weighted sums of a matrix's rows.
#pragma once

#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// mean[c] = sum_j weights[j] rows[j,c].
///
/// weights  [n]; with sum 1 the result is a mean
/// rows     [n, cols]
/// returns  [cols]; zeros for no rows
/// throws   ShapeMismatch
std::vector<double> weighted_mean(VectorView weights, MatrixView rows);

}  // namespace kvbound::reference
