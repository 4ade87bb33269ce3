// Bounds on the output error that merged entries cause for later queries: KeepKV's
// multi-step bounds and their terms.
//
// The members of a cluster were merged by predicted scores s^; the current
// query gives them the scores s. A prediction is good if s^/s is near 1.
#pragma once

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The largest relative error of predicted scores.
///
///     epsilon = max_i |1 - s^_i / s_i|
///
/// For the bounds it must be taken over the members of all clusters and over the merged entries.
///
/// log_predicted  ln s^, natural log; -infinity: a predicted score of 0
/// log_actual     ln s, natural log, in the same unit
/// returns        infinity where it overflows; 0 for no entries
/// throws         ShapeMismatch
/// source         KeepKV (arXiv:2504.09936), section 3; including the merged entries is ours
double prediction_error(VectorView log_predicted, VectorView log_actual);

/// A bound on the distance of the output over merged entries
/// from the output over their members, for any query and norm.
///
///     2 epsilon (1 + epsilon) gamma / (1 - epsilon)^2  *  share
///
/// It holds for any number of disjoint clusters whose merged
/// values are means weighted by w = p s^ (of this query head).
///
/// prediction_error  epsilon
/// value_distance    gamma = max ||v_i - v_j|| over all entries i of the cache before and all members j
/// share             the merged entries' share of the attention over the merged cache
///                   (KKV-5'); 1: as printed (KKV-5)
/// returns           infinity where epsilon is not below 1, because there is no bound then
/// source            KeepKV (arXiv:2504.09936), section 3; the share is ours
/// proof             proofs/keep_kv.md#kkv-5, #kkv-5-prime
double later_bound(double prediction_error, double value_distance, double share = 1);

/// The sharpest such bound by epsilon and gamma alone.
///
///     epsilon gamma / (1 + sqrt(1 - epsilon^2))  for one cluster,   epsilon gamma  for more
///
/// returns  infinity where epsilon is not below 1
/// proof    proofs/keep_kv.md#kkv-5-sharp
double sharp_later_bound(double prediction_error, double value_distance, int64_t clusters);

/// The largest distance between two sets of values.
///
///     max_{i, j} ||values[i,:] - others[j,:]||_2
///
/// Inner products, in blocks, only select the pairs that may be the farthest apart. Their distances are
/// computed from the differences, which avoids cancellation.
///
/// values   [entries, head_dim]
/// others   [members, head_dim]
/// returns  0 if either is empty
/// throws   ShapeMismatch; NonFinite if a number is NaN or infinite
double largest_distance(MatrixView values, MatrixView others);

}  // namespace kvbound::reference
