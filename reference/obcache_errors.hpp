// How far somebody else's scores of what an entry is worth may lie from the reference's, by nothing but rounding.
//
// Derived in reference/obcache_errors.md. Each bound covers the forms in which a score can sensibly be computed: from the
// difference of value and output element by element, in the head's space or after W^O; expanded into inner products; the
// exact removal error from o, from o_(-j), or from o_(-j) = (o - A_j v_j) / (1 - A_j).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "error_bounds.hpp"
#include "obcache.hpp"

namespace kvbound::reference {

/// The space in which one query head's changes are measured, and the sums of absolute terms in it.
///
///     size(x) = || |x| |W| ||_2  in the hidden state's, ||x||_2 in the head's own:  never below the length of x
class ChangeSpace {
 public:
  /// output_projection  [head_dim, model_dim], needed for `projected` alone
  ChangeSpace(Space space, MatrixView output_projection);

  double size(VectorView x) const;
  const ValueSpace& lengths() const { return lengths_; }
  bool is_projected() const { return !lengths_.is_head(); }
  int64_t model_dim() const { return model_dim_; }  ///< 0 for the head's own

 private:
  ValueSpace lengths_;
  Matrix absolute_gram_;  // |W| |W|^T
  int64_t model_dim_ = 0;
};

/// returns [query_heads]
std::vector<ChangeSpace> change_spaces(Space space, MatrixView output_projection, int64_t query_heads);

/// Some values as every query head's space sees them: computed once, however many queries judge.
struct MeasuredValues {
  MeasuredValues() = default;
  MeasuredValues(MatrixView values, std::span<const ChangeSpace> spaces);

  Matrix sizes;          ///< [heads, entries]
  Matrix squared_norms;  ///< [heads, entries]
};

/// Of scored_attention's scores: one query per query head, each of which sees all entries.
///
/// change    no `slot`, by which no policy scores
/// measured  of `values`
/// returns   [heads, entries], >= 0, 0 where the score is infinite
/// throws    ShapeMismatch
Matrix change_score_errors(Change change, MatrixView queries, MatrixView keys, MatrixView values,
                           const MeasuredValues& measured, std::span<const ChangeSpace> spaces, double scale,
                           const Arithmetic& arithmetic);

/// Of window_scores.   returns [query_heads, n]
Matrix window_score_errors(const LayerView& layer, int64_t window, Change change, Space space,
                           const Arithmetic& arithmetic);

/// Of accumulated_attention.   returns [query_heads, n]
Matrix accumulated_attention_errors(const LayerView& layer, int64_t window, const Arithmetic& arithmetic);

/// Of group_sum of scores that are off by `errors`; 0 where the sum is infinite.   returns [query_heads / group_size, entries]
Matrix group_sum_errors(MatrixView scores, MatrixView errors, int64_t group_size,
                        const Arithmetic& arithmetic);

/// Of a running sum that takes in one more contribution.
///
///     error(sum + c) = error(sum) + error(c) + u |sum + c| and what these errors add to that
///
/// sum  with the contribution
double running_sum_error(double sum, double error, double contribution_error, const Arithmetic& arithmetic);

}  // namespace kvbound::reference
