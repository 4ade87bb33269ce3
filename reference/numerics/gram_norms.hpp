// Norms of a product's rows in L2 by the Gram matrix of its second factor, where a bound
// shows that they are accurate.
#pragma once

#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The largest relative error of a norm that the Gram matrix may give; norms of less certain
/// accuracy are computed directly.
inline constexpr double kGramNormError = 0x1p-32;

/// Norms || x W ||_2 of rows x, from x G x^T with G = W W^T: for each row 2 inner^2 operations
/// instead of 2 inner columns.
///
/// Rounding may take x G x^T as far from || x W ||^2 as
///
///     e = gamma_{columns + 2 inner} (sum_c |x_c| || W_c ||_2)^2 + what underflows,
///
/// whatever the order of the sums (README.md, "Norms by Gram matrices"). Where e is small beside x G x^T, the
/// root is as accurate as e / (x G x^T).
class GramNorms {
 public:
  /// matrix  W [inner, columns]
  explicit GramNorms(MatrixView matrix);

  /// rows      X [rows, inner]
  /// products  [rows, inner], overwritten
  /// norms     [up to rows], the first rows' norms; NaN where the bound on the relative
  ///           error exceeds kGramNormError
  void fill(MatrixView rows, MutableMatrixView products, std::span<double> norms) const;

 private:
  double squared_error(VectorView row) const;

  Matrix gram_;                  // G [inner, inner]
  std::vector<double> lengths_;  // || W_c ||_2 [inner]
  double columns_;
};

}  // namespace kvbound::reference
