// Rows added up with weights.
#pragma once

#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// mean[c] = sum_j weights[j] rows[j,c].
///
/// weights  [n], for a mean of sum 1
/// rows     [n, cols]
/// returns  [cols]; zeros for no rows
/// throws   ShapeMismatch
std::vector<double> weighted_mean(VectorView weights, MatrixView rows);

}  // namespace kvbound::reference
