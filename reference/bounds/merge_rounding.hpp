// What rounding does to one merge: to its weighted means and its divergence, and to what a query sees of merged entries.
//
// The one analysis that the bounds on lossless merges (merge_errors), on merged entries that a tested implementation computed
// (merge_cluster_errors) and on later queries (sim/measure/later_queries) are made of. Derived in reference/bounds/merge_rounding.md.
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

/// The reference's own double precision against exact arithmetic: there is no tested implementation, so only the part that every
/// bound adds for the reference is left.
Arithmetic reference_rounding();

/// Relative: more than rounding does to the sums of nonnegative terms that make up a bound.
inline constexpr double kOwnRounding = 0x1p-30;

/// How the means of a cluster are evaluated.
enum class Evaluation {
  any_form,         ///< whatever a tested implementation may sensibly do
  as_cluster_mean,  ///< as reference::cluster_mean does
};

/// Weights softmax(logits) of logits that are off, and means of rows by them.
class UncertainWeights {
 public:
  /// logits  [rows], votes included, natural log
  /// errors  [rows]: how far each may be off before the softmax rounds; infinite ones leave the range of the rows as the bound
  UncertainWeights(VectorView logits, VectorView errors, Evaluation evaluation, const Arithmetic& arithmetic);

  /// G: how far the sum of the exponentials may be off, relative.
  double growth() const { return softmax_.growth; }
  double log_weight() const { return softmax_.log_sum_exp; }
  /// Of the mean of numbers that are exact, before its own products and sums are rounded.
  double moved_mean(VectorView numbers, double mean) const;
  /// Of sum_j w_j rows[j,c].
  ///
  /// row_errors  [rows, columns]; no rows: the rows are exact
  /// returns     [columns]; never more than the rows are apart
  std::vector<double> mean_errors(MatrixView rows, MatrixView row_errors) const;

 private:
  double rounded_;  // what the products and sums of a mean cost, of the sum of its absolute terms
  double smallest_;
  std::vector<double> exponents_;  // T: how far each exponential may be off, as a logarithm
  rounding::SoftmaxErrors softmax_;
  std::vector<double> weights_;
};

/// A cluster of members by one head's scores, and how far rounding may take everything that cluster_mean computes.
class ClusterRounding {
 public:
  /// scores  [members]: ln s^
  /// errors  [members]: how far each may be off
  /// throws  ShapeMismatch; NonFinite
  ClusterRounding(const ClusterMembers& members, VectorView scores, VectorView errors, Evaluation evaluation,
                  const Arithmetic& arithmetic);

  const ClusterMean& mean() const { return mean_; }
  const UncertainWeights& weights() const { return weights_; }
  /// Of ln W and of ln (W / P).
  double log_weight_error() const { return moved_ + any_form_; }
  /// Of m. reach: no |score| is larger, as it may have been computed; infinite where weights are off by too much.
  double mean_log_score_error(double reach) const;
  /// Of KL from scores that are off, in any form; infinite where they are off by too much.
  double divergence_error() const;
  /// Of KL from the scores as they are, evaluated as cluster_mean does: it vanishes with KL and
  /// `reach`, which is as above.
  double divergence_rounding(double reach) const;

 private:
  Arithmetic arithmetic_;
  std::vector<double> scores_;
  std::vector<double> shares_;  // p_j / P
  ClusterMean mean_;
  UncertainWeights weights_;
  double moved_ = 0;     // t: the largest of the scores' errors
  double any_form_ = 0;  // R: what evaluating m, KL or ln W costs
};

/// What rounding does to what merge_effect says of a query.
class EffectRounding {
 public:
  /// As merge_effect's. cache and clusters have to outlive this.
  EffectRounding(VectorView query, double scale, const CacheEntries& cache,
                 std::span<const MergedCluster> clusters,
                 const Arithmetic& arithmetic = reference_rounding());

  /// ln D, over the cache before
  double log_before() const { return log_before_; }
  /// Members and merged entries of all clusters: the terms of the change.
  double terms() const { return terms_; }
  /// t: by which share of itself the weight of one entry may be off, beside what all weights have in common.
  ///
  /// logit, logit_error  without votes
  double weight_error(double logit, double votes, double logit_error) const;

  /// For a change that does not vanish.
  struct Query {
    double weights =
        0;              ///< relative, of every attention weight and of every score s beside its prediction s^
    double change = 0;  ///< || error of o - o' ||, absolute
  };
  Query of_query() const;

 private:
  // Over the logits with votes: how far their log-sum-exp is off.
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
