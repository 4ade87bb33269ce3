// Rounding errors of truncated pseudo-inverses of stacked queries.
//
// Derived in reference/bounds/merge_cluster_errors.md, "Joint corrections".
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/view.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// A truncated pseudo-inverse with a fixed number of singular values.
struct TruncatedInverse {
  int64_t rank = 0;  ///< singular values that are kept
  double size = 0;   ///< its 2-norm
  double error = 0;  ///< the 2-norm of its error; infinite where there is no bound
};

/// The pseudo-inverses that a tested implementation may have.
struct InverseErrors {
  /// The reference's own first. Further ones where rounding decides whether a singular value is dropped.
  std::vector<TruncatedInverse> ranks;
  double condition_number =
      0;  ///< the largest over the smallest singular value that the reference keeps; 0 if it keeps none
};

/// rows    [heads, head_dim]: queries
/// errors  [heads, head_dim]: of the queries as the tested implementation stores them
/// rank    singular values below this share of the largest are dropped
InverseErrors pseudo_inverse_errors(MatrixView rows, MatrixView errors, double rank,
                                    const Arithmetic& arithmetic);

}  // namespace kvbound::reference
