// KeepKV's merge: several entries of one KV head become one that votes for all of them.
//
// For one query head, with p the members' votes and s^ their predicted scores (unnormalised, in the log domain):
//
//     w_j = p_j s^_j,  W = sum w,  P = sum p,  k- = sum w k / W,  v- = sum w v / W
//     z*  = ln(W / P)                            the logit that the merged entry must have to keep the cluster's weight
//     KL  = sum (w/W) ln s^ - z*  =  KL(w/W || p/P)  >= 0
//
// A merged entry with votes P, logit z* and value v- leaves the output as it was for any query that gives the members the
// logits ln s^ (up to one constant). The query q has the logit scale q . k- on average, which is KL too much.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/numerics/pseudo_inverse.hpp>

namespace kvbound::reference {

/// The members of a cluster, the one that stays first.
struct ClusterMembers {
  Matrix keys;                ///< [members, head_dim]
  Matrix values;              ///< [members, head_dim]
  std::vector<double> votes;  ///< [members], > 0
  Matrix log_scores;          ///< [heads, members]: ln s^, natural log, by query head of the KV head
};

/// A mean log score below this share of the largest one counts as 0.
inline constexpr double kSingularZip = 1e-12;

/// Where ZIP's scale z*/m, m = sum (w/W) ln s^, is not what one would wish for.
struct ZipScale {
  double scale = 1;  ///< 1 also where it is singular, or another key was asked for
  bool singular =
      false;  ///< |m| <= kSingularZip max |ln s^| though KL != 0: no scale, and the minimum-norm key instead
  bool negative() const { return scale < 0; }
  bool far() const { return !(scale >= 0.5 && scale <= 1.5); }
};

/// What a cluster became.
struct MergedEntry {
  std::vector<double> key;         ///< [head_dim]
  std::vector<double> value;       ///< [head_dim]
  double votes = 0;                ///< P
  std::vector<double> log_scores;  ///< [heads]: ln(W_h / P), what each query head predicts of it
  ZipScale zip;
};

/// How clusters merge.
struct KeyRule {
  MergedKey key = MergedKey::min_norm;
  MergeGqa gqa = MergeGqa::joint;
  double rank = 0.3;  ///< of `joint`: singular values below this share of the largest are dropped
};

/// The query heads for which the clusters of one KV head merge at one time.
class MergeQueries {
 public:
  /// rule              not zip with joint of several heads
  /// queries           [heads, head_dim]: each query head's last query
  /// scale             logits are scale * query . key
  /// log_denominators  [heads]: ln D_h, D_h = sum p s^ over the cache before the merge; needed by `joint` of several heads
  /// throws            ShapeMismatch; NonFinite; InvalidPolicy for zip with joint of several heads
  MergeQueries(const KeyRule& rule, MatrixView queries, double scale,
               std::vector<double> log_denominators = {});

  const KeyRule& rule() const { return rule_; }
  int64_t heads() const { return heads_; }
  int64_t head_dim() const { return queries_.cols(); }
  /// The scores that the merge goes by: joint: each head's; mean: one, the mean of the logarithms.
  Matrix merging_scores(MatrixView log_scores) const;
  /// scale q_h . vector for the queries that the merge goes by.
  double logit(int64_t head, VectorView vector) const;
  /// The shortest vector that moves their logits by so much, as far as can be.
  std::vector<double> correction(VectorView logits) const;
  /// ln D_h; 0 where it is of no matter.
  double log_denominator(int64_t head) const;

 private:
  KeyRule rule_;
  int64_t heads_;
  Matrix queries_;  // times the scale; mean: their mean, one row
  std::vector<double> log_denominators_;
  PseudoInverse inverse_;
};

/// The weighted means of a cluster, as one query head sees it.
struct ClusterMean {
  std::vector<double> weights;  ///< [members]: w/W, sum 1
  double log_weight = 0;        ///< ln W, natural log
  double mean_log_score = 0;    ///< m = sum (w/W) ln s^; less the divergence it is z* = ln(W / P)
  double divergence = 0;        ///< KL, in nats, >= 0; 0 if all scores are equal
  std::vector<double> key;      ///< k- [head_dim]
  std::vector<double> value;    ///< v- [head_dim]
};

/// log_scores  [members], natural log, finite; only their differences matter to weights, divergence, key and value
/// throws      ShapeMismatch; NonFinite if a score is NaN or infinite
ClusterMean cluster_mean(const ClusterMembers& members, VectorView log_scores);

/// ln(W / P): what is predicted of the entry that members become.
///
///     ln(sum_j p_j s^_j / sum_j p_j)
double log_mean_score(VectorView votes, VectorView log_scores);

/// One KV head's entries before a merge, and what is predicted of them.
struct MergingCache {
  MatrixView keys;        ///< [entries, head_dim]
  MatrixView values;      ///< [entries, head_dim]
  VectorView votes;       ///< [entries], p > 0; empty: 1 for all
  MatrixView log_scores;  ///< [heads, entries]: ln s^, natural log, by query head of the KV head
};

/// KeepKV's merge: every cluster, the kept entry and the evicted ones that go to it, becomes one entry.
///
///     value     joint: sum_h c_h v-_h / sum_h c_h, c_h = (W_h / D_h)^2;  mean: v- of the one score
///     convex    joint: k_r = mean_h k-_h;  mean: k-
///     min-norm  joint: k_r = mean_h k-_h + the smallest correction that gives every head its logit
///                            scale q_h . k-_h - KL_h, as far as the queries that were not dropped can
///               mean:  k_r = k- - KL q / (scale ||q||^2), q = mean_h q_h; no correction for q = 0
///     zip       mean:  k_r = k- z*/m;  scale 1 if all scores are equal
///
/// mean: one score ln s^_j = mean_h ln s^^h_j. With one query head joint and mean are the same.
///
/// Corrections that are no finite numbers, because q is next to 0, are left out.
///
/// clusters  entries that become one, at least one each; disjoint
/// returns   [clusters]
/// throws    ShapeMismatch; NonFinite if a number is NaN or infinite
/// source    KeepKV (arXiv:2504.09936), Algorithm 1; zip: eq. 25; the other keys are ours
/// proof     proofs/keep_kv.md#kkv-3-prime, #kkv-3, #kkv-gqa
std::vector<MergedEntry> keep_kv(const MergingCache& cache, std::span<const std::vector<int64_t>> clusters,
                                 const MergeQueries& queries);

/// The merged entry of one cluster: keep_kv of its members alone.
MergedEntry merge_cluster(const MergeQueries& queries, const ClusterMembers& members);

}  // namespace kvbound::reference
