// How far another implementation's OBCache scores may differ from the reference's by rounding alone.
//
// Derived in reference/bounds/obcache_errors.md. Each bound covers the forms in which a score can sensibly be computed: from the
// difference of value and output element by element, in the head's space or after W^O; expanded into inner products; the
// exact removal error from o, from o_(-j), or from o_(-j) = (o - A_j v_j) / (1 - A_j).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/eviction/change_space.hpp>
#include <kvbound/reference/eviction/obcache.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

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
