// Bounds for L2 norms of projected values that are roots of squared lengths by W^O's Gram matrix.
#pragma once

#include <cstdint>
#include <vector>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// The error of a norm as a root, without that of the root's own rounding.
struct RootError {
  double error = 0;
  bool may_project = true;  ///< whether the implementation may take the norm of the projected value
};

/// What the roots (v G v^T)^1/2 of a query head's squared lengths are off by through rounding, where
/// arithmetic.gram_share says that an implementation takes them for || v W ||_2; G = W W^T. Derivation:
/// error_bounds.md, "Projected value norms".
class GramRootErrors {
 public:
  /// values      [tokens, head_dim]
  /// projection  W [head_dim, model_dim]: the head's rows of W^O
  /// exact       whether the implementation has these numbers, not rounded or computed ones
  GramRootErrors(MatrixView values, MatrixView projection, bool exact, const Arithmetic& arithmetic);

  /// The bound for token j's norm: 0 if the implementation surely projects that value instead.
  ///
  /// norm    || v W ||_2 of `values`, within `off` of that of the implementation's numbers
  /// length  the least ||v||_2 of the implementation's numbers
  /// size    sum_k |v_k| ||W_k||_2, which with `off` is no less than theirs
  RootError of(int64_t j, double norm, double off, double length, double size) const;

 private:
  bool surely_takes_root(double least_square, double whole, double length) const;

  double share_, rounding_, summing_, trace_ = 0;
  std::vector<double> terms_;  // [tokens]: |v| |G| |v|^T; none if the numbers are not exact
};

}  // namespace kvbound::reference
