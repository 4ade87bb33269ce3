// How far merged entries may lead later queries astray: KeepKV's multi-step bounds and what they are made of.
//
// The members of a cluster merged by predicted scores s^; the query at hand gives them the scores s. An entry is predicted well
// if s^/s is next to 1.
#pragma once

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The largest relative error of predicted scores.
///
///     epsilon = max_i |1 - s^_i / s_i|
///
/// To bound anything it has to be taken over the members of all clusters and over the merged entries themselves.
///
/// log_predicted  ln s^, natural log; -infinity: predicted to get nothing
/// log_actual     ln s, natural log, in the same unit
/// returns        infinity where it overflows; 0 for no entries
/// throws         ShapeMismatch
/// source         KeepKV (arXiv:2504.09936), section 3; that merged entries count is ours
double prediction_error(VectorView log_predicted, VectorView log_actual);

/// How far the output over merged entries may lie from that over their members, for any query and in any norm.
///
///     2 epsilon (1 + epsilon) gamma / (1 - epsilon)^2  *  share
///
/// Any number of disjoint clusters, each merged entry's value the mean of its members' by w = p s^ (of this query head).
///
/// prediction_error  epsilon
/// value_distance    gamma = max ||v_i - v_j|| over all entries i of the cache before and all members j
/// share             the merged entries' share of the attention over the merged cache (KKV-5'); 1: as printed (KKV-5)
/// returns           infinity where epsilon is not below 1, and nothing is claimed
/// source            KeepKV (arXiv:2504.09936), section 3; the share is ours
/// proof             proofs/keep_kv.md#kkv-5, #kkv-5-prime
double later_bound(double prediction_error, double value_distance, double share = 1);

/// The largest distance between two sets of values.
///
///     max_{i, j} ||values[i,:] - others[j,:]||_2
///
/// Inner products, in blocks, only tell which pairs may be the farthest apart; those are looked at themselves, so nothing
/// cancels.
///
/// values   [entries, head_dim]
/// others   [members, head_dim]
/// returns  0 if either is empty
/// throws   ShapeMismatch; NonFinite if a number is NaN or infinite
double largest_distance(MatrixView values, MatrixView others);

}  // namespace kvbound::reference
