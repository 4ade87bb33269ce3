// Bounds on the difference, through rounding alone, of another implementation's OBCache
// scores from the reference's.
//
// Derived in reference/bounds/obcache_errors.md. Each bound covers the usual ways to compute a score: from
// the difference of value and output element by element, in the head's space or after W^O; expanded into
// inner products; the exact removal error from o, from o_(-j), or from o_(-j) = (o - A_j v_j) / (1 - A_j).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/eviction/change_space.hpp>
#include <kvbound/reference/eviction/obcache.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// Bounds for the scores of scored_attention: one query per query head, each of which sees all entries.
///
/// change    not `slot`, by which no policy ranks
/// measured  sizes and norms of `values`
/// votes     [entries] of a merged cache, whose keys and values are exact; empty: 1 for all
/// returns   [heads, entries], >= 0, 0 where the score is infinite
/// throws    ShapeMismatch
Matrix change_score_errors(Change change, MatrixView queries, MatrixView keys, MatrixView values,
                           const MeasuredValues& measured, std::span<const ChangeSpace> spaces, double scale,
                           const Arithmetic& arithmetic, VectorView votes = {});

/// Bounds for window_scores.   returns [query_heads, n]
Matrix window_score_errors(const LayerView& layer, int64_t window, Change change, Space space,
                           const Arithmetic& arithmetic);

/// Bounds for accumulated_attention.   returns [query_heads, n]
Matrix accumulated_attention_errors(const LayerView& layer, int64_t window, const Arithmetic& arithmetic);

/// Bounds for group_sum of scores with the given errors; 0 where the sum is infinite.
///
/// returns [query_heads / group_size, entries]
Matrix group_sum_errors(MatrixView scores, MatrixView errors, int64_t group_size,
                        const Arithmetic& arithmetic);

/// The error of a running sum after adding one more contribution c.
///
///     error(sum + c) = error(sum) + error(c) + u (|sum + c| + error(sum) + error(c))
///
/// sum      with the contribution
/// error    of the sum before the contribution
/// returns  0 for an infinite sum
double running_sum_error(double sum, double error, double contribution_error, const Arithmetic& arithmetic);

}  // namespace kvbound::reference
