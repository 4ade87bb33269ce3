// Norms of a product's rows in L2 by the Cholesky factor of its second factor's Gram matrix: what rounding
// can make of them, for any implementation that follows the rules here.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/arithmetic.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// How far || x L ||^2 may be from || x W ||^2 through G's sums, the shift and the factorisation, as a share
/// of (sum_k |x_k| || W_k ||_2)^2.
constexpr double gram_factor_error(int64_t inner, int64_t columns) { return 2 * gram_shift(inner, columns); }

/// Sizes of products x L, for L L^T = W W^T + gram_shift times its diagonal, of which an implementation has a
/// factor that rounding has made another one.
class GramFactor {
 public:
  /// matrix  W [inner, columns]
  explicit GramFactor(MatrixView matrix);

  /// An upper bound of || |x| |L| ||_2 for each row x, whatever the rounding of L: what the errors of sums of
  /// products are a share of. No more than sum_k |x_k| || W_k ||_2.
  ///
  /// rows     X [rows, inner]
  /// returns  [rows]
  std::vector<double> sizes(MatrixView rows) const;

 private:
  void set_deviation(int64_t columns);

  Matrix factor_;                // |L| [inner, inner], lower triangular
  std::vector<double> lengths_;  // || W_k ||_2 [inner]
  double deviation_ = 0;         // of another factor's row k from this one's, as a share of || W_k ||_2
};

}  // namespace kvbound::reference
