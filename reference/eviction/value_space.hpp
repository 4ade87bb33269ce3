// The space in which changes of one query head's output are measured.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

struct TokenBlock;

/// Lengths and inner products of a query head's outputs, before or after the output projection.
///
///     head:       x . y  = sum_c x_c y_c
///     projected:  x . y  = (x W)(y W)^T = x G y^T,   G = W W^T
///
/// W is the head's rows of W^O, [head_dim, model_dim]. G is
/// [head_dim, head_dim], so that no [tokens, model_dim] product is formed.
class ValueSpace {
 public:
  /// The head's space.
  ValueSpace() = default;
  /// output_projection  [head_dim, model_dim], read for `projected` only
  ValueSpace(Space space, MatrixView output_projection);

  /// The rows y G (in the head's space: the rows y), so that x . y
  /// is the plain inner product of x with the result's row.
  ///
  /// rows     [rows, head_dim]
  /// returns  [rows, head_dim]
  /// throws   ShapeMismatch
  Matrix gram_product(MatrixView rows) const;

  /// x . x of every row x; >= 0.
  ///
  /// rows     [rows, head_dim]
  /// returns  [rows]
  /// throws   ShapeMismatch; NonFinite
  std::vector<double> squared_norms(MatrixView rows) const;
  /// x . x of one vector [head_dim], which may hold NaN or infinity.
  double squared_norm(VectorView x) const;

  /// Whether this is the head's space.
  bool is_head() const { return !gram_; }

 private:
  void append_squared_norms(const TokenBlock& block, std::vector<double>& norms) const;

  std::optional<Matrix> gram_;  // G; nullopt: the identity
};

/// The spaces of a layer's query heads.   returns [query_heads]
std::vector<ValueSpace> value_spaces(Space space, MatrixView output_projection, int64_t query_heads);

/// The squared norms of one KV head's values in the spaces of some query heads.   returns [heads, entries]
Matrix squared_norms(MatrixView values, std::span<const ValueSpace> spaces);

}  // namespace kvbound::reference
