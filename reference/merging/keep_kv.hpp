// KeepKV's merge: several entries of one KV head are replaced by one that has the sum of their votes.
//
// For one query head, with p the members' votes and s^ their predicted scores
// (unnormalised, in the log domain):
//
//     w_j = p_j s^_j,  W = sum w,  P = sum p,  k- = sum w k / W,  v- = sum w v / W
//     z*  = ln(W / P): the logit of the merged entry that preserves the cluster's weight
//     KL  = sum (w/W) ln s^ - z*  =  KL(w/W || p/P)  >= 0
//
// A merged entry with votes P, logit z* and value v- does not change the output of any query that gives
// the members the logits ln s^ (up to one constant). For the query q, the key k- has the logit scale q .
// k-, which exceeds z* by KL.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/numerics/pseudo_inverse.hpp>

namespace kvbound::reference {

/// The members of a cluster, the kept entry first.
struct ClusterMembers {
  Matrix keys;                ///< [members, head_dim]
  Matrix values;              ///< [members, head_dim]
  std::vector<double> votes;  ///< [members], > 0
  Matrix log_scores;          ///< [heads, members]: ln s^, natural log, by query head of the KV head
};

/// ZIP's scale z*/m, m = sum (w/W) ln s^, and whether it is degenerate.
struct ZipScale {
  double scale = 1;  ///< 1 also where it is singular, or for other keys than zip
  /// |m| <= kSingularZip max |ln s^| although KL != 0: there is no scale, and the minimum-norm key is used.
  bool singular = false;
  bool negative() const { return scale < 0; }
  bool far() const { return !(scale >= 0.5 && scale <= 1.5); }
};

/// The entry that replaces a cluster.
struct MergedEntry {
  std::vector<double> key;         ///< [head_dim]
  std::vector<double> value;       ///< [head_dim]
  double votes = 0;                ///< P
  std::vector<double> log_scores;  ///< [heads]: ln(W_h / P), its predicted score per query head
  ZipScale zip;
};

/// The queries for which the clusters of one KV head are merged.
class MergeQueries {
 public:
  /// rule              not zip with joint and several heads
  /// queries           [heads, head_dim]: each query head's last query
  /// scale             logits are scale * query . key
  /// log_denominators  [heads]: ln D_h, D_h = sum p s^ over the cache before the merge; read by
  ///                   `joint` with several heads
  /// throws            ShapeMismatch; NonFinite; InvalidPolicy for zip with joint and several heads
  MergeQueries(const KeyRule& rule, MatrixView queries, double scale,
               std::vector<double> log_denominators = {});

  const KeyRule& rule() const { return rule_; }
  int64_t heads() const { return heads_; }
  int64_t head_dim() const { return queries_.cols(); }
  /// The log scores that determine the merge: joint: those of every head; mean: one row,
  /// the mean of the log scores.
  Matrix merging_scores(MatrixView log_scores) const;
  /// scale q_h . vector; mean: for the mean query.
  double logit(int64_t head, VectorView vector) const;
  /// The shortest vector whose logits are the given ones, as closely as possible; zeros if
  /// that vector is not finite.
  std::vector<double> correction(VectorView logits) const;
  /// ln D_h; 0 where it is not used.
  double log_denominator(int64_t head) const;

 private:
  KeyRule rule_;
  int64_t heads_;
  Matrix queries_;  // multiplied by the scale; mean: one row, the mean of the queries
  std::vector<double> log_denominators_;
  PseudoInverse inverse_;
};

/// The weighted means of a cluster by one row of scores.
struct ClusterMean {
  std::vector<double> weights;  ///< [members]: w/W, sum 1
  double log_weight = 0;        ///< ln W, natural log
  double mean_log_score = 0;    ///< m = sum (w/W) ln s^; m - KL = z* = ln(W / P)
  double divergence = 0;        ///< KL, in nats, >= 0; 0 if all scores are equal
  std::vector<double> key;      ///< k- [head_dim]
  std::vector<double> value;    ///< v- [head_dim]
};

/// The weighted means of a cluster.
///
/// log_scores  [members], natural log, finite; weights, divergence, key and value depend
///             only on their differences
/// throws      ShapeMismatch; NonFinite if a score is NaN or infinite
ClusterMean cluster_mean(const ClusterMembers& members, VectorView log_scores);

/// ln(W / P): the merged entry's predicted log score.
///
///     ln(sum_j p_j s^_j / sum_j p_j)
double log_mean_score(VectorView votes, VectorView log_scores);

/// One KV head's entries before a merge, and their predicted scores.
struct MergingCache {
  MatrixView keys;        ///< [entries, head_dim]
  MatrixView values;      ///< [entries, head_dim]
  VectorView votes;       ///< [entries], p > 0; empty: 1 for all
  MatrixView log_scores;  ///< [heads, entries]: ln s^, natural log, by query head of the KV head
};

/// KeepKV's merge: every cluster, a kept entry and the evicted ones that merge with it,
/// is replaced by one entry.
///
///     value     joint: sum_h c_h v-_h / sum_h c_h, c_h = (W_h / D_h)^2;  mean: v- of the one score
///     convex    joint: k_r = mean_h k-_h;  mean: k-
///     min-norm  joint: k_r = mean_h k-_h + the smallest correction that gives every head its logit
///                            scale q_h . k-_h - KL_h, as closely as possible without the dropped directions
///               mean:  k_r = k- - KL q / (scale ||q||^2), q = mean_h q_h; no correction for q = 0
///     zip       mean:  k_r = k- z*/m;  scale 1 if all scores are equal
///
/// mean: one score ln s^_j = mean_h ln s^^h_j. With one query head joint and mean are the same.
///
/// Corrections that are not finite, because q is near 0, are left out.
///
/// clusters  the entries of each cluster, at least one, the kept entry first; disjoint
/// returns   [clusters]
/// throws    ShapeMismatch; NonFinite if a number is NaN or infinite
/// source    KeepKV (arXiv:2504.09936), Algorithm 1; zip: eq. 25; the other keys are ours
/// proof     proofs/keep_kv.md#kkv-3-prime, #kkv-3, #kkv-gqa
std::vector<MergedEntry> keep_kv(const MergingCache& cache, std::span<const std::vector<int64_t>> clusters,
                                 const MergeQueries& queries);

/// The merged entry of one cluster: keep_kv of its members alone.
MergedEntry merge_cluster(const MergeQueries& queries, const ClusterMembers& members);

}  // namespace kvbound::reference
