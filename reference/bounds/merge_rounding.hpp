// Rounding errors of one merge: of its weighted means, of its divergence, and of a query's
// attention to merged entries.
//
// This analysis is shared by the bounds on lossless merges (merge_errors), on merged entries that a tested
// implementation computed (merge_cluster_errors) and on later queries (sim/measure/later_queries). Derived in
// reference/bounds/merge_rounding.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>
#include <kvbound/reference/merging/merge_effect.hpp>

#include "error_bounds.hpp"
#include "softmax_errors.hpp"

namespace kvbound::reference {

/// The reference's own rounding against exact arithmetic: the tested implementation's part is 0, and only the
/// part that every bound adds for the reference remains.
Arithmetic reference_rounding();

/// A relative margin larger than the rounding errors of evaluating a bound, which is a
/// sum of nonnegative terms.
inline constexpr double kOwnRounding = 0x1p-30;

/// How the means of a cluster are evaluated.
enum class Evaluation {
  any_form,         ///< in any reasonable form, for a tested implementation
  as_cluster_mean,  ///< as reference::cluster_mean does
};

/// Weights softmax(logits) of logits with errors, and means of rows with these weights.
class UncertainWeights {
 public:
  /// logits  [rows], votes included, natural log
  /// errors  [rows]: the logits' errors before the softmax; if one is infinite, mean_errors bounds
  ///         by the range of the rows
  UncertainWeights(VectorView logits, VectorView errors, Evaluation evaluation, const Arithmetic& arithmetic);

  /// G: the relative error of the sum of the exponentials.
  double growth() const { return softmax_.growth; }
  double log_weight() const { return softmax_.log_sum_exp; }
  /// The error of the mean of exact numbers, without the rounding of its own products and sums.
  double moved_mean(VectorView numbers, double mean) const;
  /// The errors of sum_j w_j rows[j,c].
  ///
  /// row_errors  [rows, columns]; no rows: the rows are exact
  /// returns     [columns]; at most the range of the rows, plus rounding
  std::vector<double> mean_errors(MatrixView rows, MatrixView row_errors) const;
  /// A bound on |<w, error of the mean>| (functionals.md, "Merged entries"), the errors of the weights being
  /// those of all columns; infinite where these are too large.
  ///
  /// direction   w [columns]
  /// rows_along  [rows]: bounds on |<w, error of a row>|
  double error_along(VectorView direction, MatrixView rows, MatrixView row_errors,
                     VectorView rows_along) const;

 private:
  double rounded_;  // rounding of a mean's products and sums, as a share of the sum of its absolute terms
  double smallest_;
  std::vector<double> exponents_;  // T: the error of each exponential, as a logarithm
  rounding::SoftmaxErrors softmax_;
  std::vector<double> weights_;
};

/// A cluster with one row of scores, and the rounding errors of all results of cluster_mean.
class ClusterRounding {
 public:
  /// scores  [members]: ln s^
  /// errors  [members]: errors of the scores
  /// throws  ShapeMismatch; NonFinite
  ClusterRounding(const ClusterMembers& members, VectorView scores, VectorView errors, Evaluation evaluation,
                  const Arithmetic& arithmetic);

  const ClusterMean& mean() const { return mean_; }
  const UncertainWeights& weights() const { return weights_; }
  /// The error of ln W, and of ln (W / P).
  double log_weight_error() const { return moved_ + any_form_; }
  /// The error of m; infinite where the weights' errors are too large. reach: upper bound
  /// of the computed |scores|.
  double mean_log_score_error(double reach) const;
  /// The error of KL for scores with errors, evaluated in any form; infinite where the
  /// scores' errors are too large.
  double divergence_error() const;
  /// The error of KL for exact scores, evaluated as by cluster_mean; it tends
  /// to 0 with KL and `reach`, the upper bound of the computed |scores|.
  double divergence_rounding(double reach) const;

 private:
  Arithmetic arithmetic_;
  std::vector<double> scores_;
  std::vector<double> shares_;  // p_j / P
  ClusterMean mean_;
  UncertainWeights weights_;
  double moved_ = 0;     // t: the largest of the scores' errors
  double any_form_ = 0;  // R: the rounding error of evaluating m, KL or ln W
};

/// The rounding errors of merge_effect for one query.
class EffectRounding {
 public:
  /// Takes the arguments of merge_effect. cache and clusters must outlive the object.
  EffectRounding(VectorView query, double scale, const CacheEntries& cache,
                 std::span<const MergedCluster> clusters,
                 const Arithmetic& arithmetic = reference_rounding());

  /// ln D, over the cache before the merge
  double log_before() const { return log_before_; }
  /// The number of members and merged entries of all clusters: the terms of the change.
  double terms() const { return terms_; }
  /// t: the relative error of one entry's weight, without the part common to all weights.
  ///
  /// logit, logit_error  without votes
  double weight_error(double logit, double votes, double logit_error) const;

  /// Errors for one query, also for a change that is not 0 in exact arithmetic.
  struct Query {
    double weights = 0;  ///< relative error of every attention weight, and of every ratio s^ / s
    double change = 0;   ///< || error of o - o' ||, absolute
  };
  Query of_query() const;

 private:
  // The error of the log-sum-exp of logits with votes.
  double log_sum_error(std::vector<double> logits, std::vector<double> errors) const;

  VectorView query_;
  double scale_;
  const CacheEntries& cache_;
  std::span<const MergedCluster> clusters_;
  Arithmetic arithmetic_;
  double log_before_ = 0;
  double terms_ = 0;
};

}  // namespace kvbound::reference
