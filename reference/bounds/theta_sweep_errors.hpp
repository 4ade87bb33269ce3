// Bounds on the difference, through rounding alone, of another implementation's scores of
// theta-sweep from the reference's.
#pragma once

#include <kvbound/reference/eviction/theta_sweep.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// Bounds for theta_sweep_scores of arguments with these errors.
///
/// head_score_errors  [group_size, candidates]
/// norm_errors        [group_size, tokens]
/// returns            [lambdas, candidates]; infinite where a mean norm may be 0
/// source             error_bounds.md, "Mixtures of scores and norms"
Matrix theta_sweep_score_errors(const ThetaSweepInput& input, MatrixView head_score_errors,
                                MatrixView norm_errors, const Arithmetic& arithmetic);

}  // namespace kvbound::reference
