// The truncated pseudo-inverse: the shortest vector that meets linear conditions as closely as possible,
// without the directions of small singular values, which would make it long.
#pragma once

#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// A truncated pseudo-inverse.
///
///     rows = sum_i sigma_i u_i v_i^T;   x = sum_{i: sigma_i >= rank sigma_max, sigma_i > 0}
///                                       (u_i . targets / sigma_i)
///     v_i
///
/// Rounding turns a singular value of 0 into a few units in the last place of the largest, so singular values
/// below 2^-52 max(conditions, unknowns) sigma_max count as 0.
class PseudoInverse {
 public:
  PseudoInverse() = default;
  /// rows    [conditions, unknowns]
  /// rank    0..1: singular values below this share of the largest are dropped
  /// throws  NonFinite if a number is NaN or infinite
  PseudoInverse(MatrixView rows, double rank);

  /// The minimum-norm least-squares solution of rows x = targets, without the dropped directions.
  ///
  /// targets  [conditions]
  /// returns  [unknowns]; 0 for no conditions or zero rows
  /// throws   ShapeMismatch
  std::vector<double> solve(VectorView targets) const { return solve(targets, rank()); }
  /// The same without further directions: with those of the `rank` largest singular values only,
  /// or all if there are fewer.
  std::vector<double> solve(VectorView targets, int64_t rank) const;

  /// The number of directions that were not dropped.
  int64_t rank() const { return directions_.rows(); }

 private:
  int64_t conditions_ = 0;
  int64_t unknowns_ = 0;
  Matrix combinations_;  // [rank, conditions]: u_i / sigma_i
  Matrix directions_;    // [rank, unknowns]: v_i
};

}  // namespace kvbound::reference
