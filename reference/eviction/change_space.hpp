// The space in which changes of one query head's output are measured, with the sums of
// absolute terms for error bounds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

#include "value_space.hpp"

namespace kvbound::reference {

/// The space in which one query head's changes are measured, and the sums of absolute terms in it.
///
///     size(x) = || |x| |W| ||_2 in the hidden state's space, ||x||_2 in the head's: never below x's length
class ChangeSpace {
 public:
  /// output_projection  [head_dim, model_dim], read for `projected` only
  ChangeSpace(Space space, MatrixView output_projection);

  double size(VectorView x) const;
  /// sum_k |x_k| || W_k ||_2, no less than any length of numbers +-x_k; for the hidden state's space alone.
  double sum_of_lengths(VectorView x) const;
  const ValueSpace& lengths() const { return lengths_; }
  bool is_projected() const { return !lengths_.is_head(); }
  int64_t model_dim() const { return model_dim_; }  ///< 0 for the head's space

 private:
  ValueSpace lengths_;
  Matrix absolute_gram_;                 // |W| |W|^T
  std::vector<double> lengths_of_rows_;  // || W_k ||_2
  int64_t model_dim_ = 0;
};

/// The spaces of a layer's query heads.   returns [query_heads]
std::vector<ChangeSpace> change_spaces(Space space, MatrixView output_projection, int64_t query_heads);

/// Sizes and squared norms of values in every query head's space, computed once for all queries.
struct MeasuredValues {
  MeasuredValues() = default;
  MeasuredValues(MatrixView values, std::span<const ChangeSpace> spaces);

  Matrix sizes;          ///< [heads, entries]
  Matrix squared_norms;  ///< [heads, entries]
};

}  // namespace kvbound::reference
