// How far another implementation's merged entry may differ from the reference's by rounding alone.
//
// Derived in reference/bounds/merge_cluster_errors.md from the model of error_bounds.md; no constant is tuned. Bounds are infinite where
// rounding may lead anywhere: a singular value at the rank's limit, a ZIP scale next to a singular one, queries next to zero.
#pragma once

#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// How far the numbers that a cluster is made of may be off, storage included.
struct MemberErrors {
  Matrix keys;        ///< [members, head_dim]
  Matrix values;      ///< [members, head_dim]
  Matrix log_scores;  ///< [heads, members]; of methods that predict
};

/// Of a merged entry.
struct MergedEntryErrors {
  std::vector<double> key;         ///< [head_dim]
  std::vector<double> value;       ///< [head_dim]
  std::vector<double> log_scores;  ///< [heads]; of methods that predict
};

/// Of a mean of rows weighted by softmax(logits), with logits and rows each off by so much.
///
///     rows, row_errors  [members, columns];   logits, errors  [members], natural log
std::vector<double> weighted_mean_errors(VectorView logits, VectorView errors, MatrixView rows,
                                         MatrixView row_errors, const Arithmetic& arithmetic);

/// The query heads for which a cluster merges, and how far D_h may be off.
struct MergeErrorsCase {
  KeyRule rule;
  MatrixView queries;  ///< [heads, head_dim]
  double scale = 1;
  VectorView log_denominators;  ///< [heads]; of `joint` with several heads
  VectorView denominator_errors;
};

/// Of merge_cluster.
MergedEntryErrors merge_cluster_errors(const MergeErrorsCase& given, const ClusterMembers& members,
                                       const MemberErrors& errors, const Arithmetic& arithmetic);

/// Of the means by similarity_weights and gaussian_weights.
MergedEntryErrors similarity_mean_errors(const ClusterMembers& members, const MemberErrors& errors,
                                         const Arithmetic& arithmetic);
MergedEntryErrors gaussian_mean_errors(const ClusterMembers& members, const MemberErrors& errors,
                                       const Arithmetic& arithmetic);

/// Of the cosine of two keys that are off by so much; at most 2.
double cosine_error(VectorView key, VectorView key_errors, VectorView other, VectorView other_errors,
                    const Arithmetic& arithmetic);

/// What taking in `updates` queries may cost a moving average's logarithm, beside the errors of the scores themselves.
///
/// largest_score  no |ln s| is larger
double score_ema_error(int64_t updates, double ema, double largest_score, const Arithmetic& arithmetic);

}  // namespace kvbound::reference
