// Bounds on the difference, through rounding alone, of another implementation's merged
// entries from the reference's.
//
// Derived in reference/bounds/merge_cluster_errors.md from the model of error_bounds.md; no constant is
// tuned. Bounds are infinite where rounding may change the result arbitrarily: two singular values at the
// rank's limit, a ZIP scale near a singular one, queries near zero. Where one singular value is at the limit,
// the key is one of two that have bounds.
#pragma once

#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// The errors of a cluster's members, storage included.
struct MemberErrors {
  Matrix keys;        ///< [members, head_dim]
  Matrix values;      ///< [members, head_dim]
  Matrix log_scores;  ///< [heads, members]; for methods that predict scores
};

/// A merged key that a tested implementation may have, and its errors, [head_dim].
struct PossibleKey {
  std::vector<double> key, errors;
};

/// Directions w in which the errors of a merged entry are bounded as wholes, [head_dim] each.
struct MergeDirections {
  std::vector<std::vector<double>> key = {}, value = {};
};

/// The errors of a merged entry.
struct MergedEntryErrors {
  std::vector<double> key;         ///< [head_dim]; of all possible keys
  std::vector<double> value;       ///< [head_dim]
  std::vector<double> log_scores;  ///< [heads]; for methods that predict scores
  /// Where rounding decides which singular values of the queries are dropped: the key
  /// of every rank; else empty.
  std::vector<PossibleKey> possible_keys = {};
  /// Of the queries, for `joint` keys: the largest over the smallest singular value that is kept; else 0.
  double condition_number = 0;
  /// [directions]: by how much a bound on |<w, error>| stays below sum_c |w_c| times component c's; 0 where
  /// no such bound is known. The bound stays as far below if separate errors are added to the components.
  std::vector<double> key_savings = {}, value_savings = {};
};

/// The queries for which a cluster merges, and the errors of ln D_h.
struct MergeErrorsCase {
  KeyRule rule;
  MatrixView queries;  ///< [heads, head_dim]
  double scale = 1;
  VectorView log_denominators;    ///< [heads]: ln D_h; for `joint` with several heads
  VectorView denominator_errors;  ///< [heads]: errors of ln D_h
};

/// Bounds for merge_cluster.
MergedEntryErrors merge_cluster_errors(const MergeErrorsCase& given, const ClusterMembers& members,
                                       const MemberErrors& errors, const Arithmetic& arithmetic,
                                       const MergeDirections& directions = {});

/// Bounds for the means weighted by similarity_weights and by gaussian_weights.
MergedEntryErrors similarity_mean_errors(const ClusterMembers& members, const MemberErrors& errors,
                                         const Arithmetic& arithmetic,
                                         const MergeDirections& directions = {});
MergedEntryErrors gaussian_mean_errors(const ClusterMembers& members, const MemberErrors& errors,
                                       const Arithmetic& arithmetic, const MergeDirections& directions = {});

/// A bound for the cosine of two keys with the given errors; at most 2. product_depth and tensor sums are
/// those of the keys' product; lengths are summed in any order, and not in tensor cores.
double cosine_error(VectorView key, VectorView key_errors, VectorView other, VectorView other_errors,
                    const Arithmetic& arithmetic);

/// A bound for the logarithm of a moving average after `updates` updates, without the errors
/// of the scores themselves.
///
/// largest_score  upper bound of |ln s|
double score_ema_error(int64_t updates, double ema, double largest_score, const Arithmetic& arithmetic);

}  // namespace kvbound::reference
