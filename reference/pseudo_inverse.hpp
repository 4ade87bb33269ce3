// The smallest vector that meets some linear conditions, as far as they can be met without blowing it up.
#pragma once

#include <vector>

#include "core/view.hpp"

namespace kvbound::reference {

/// The minimum-norm least-squares solution by a truncated pseudo-inverse.
///
///     x = sum_{i: sigma_i >= rank sigma_max, sigma_i > 0} (u_i . targets / sigma_i) v_i,   rows = sum_i sigma_i u_i v_i^T
///
/// rows     [conditions, unknowns]
/// targets  [conditions]
/// rank     0..1: smaller singular values than this share of the largest are dropped
/// returns  [unknowns]; 0 for no conditions or zero rows
/// throws   ShapeMismatch
std::vector<double> minimum_norm_solution(MatrixView rows, VectorView targets, double rank);

}  // namespace kvbound::reference
