// Merging in 50 digits by the definitions of reference/merging/keep_kv.hpp; every number has a bound on its error when
// evaluated in double precision.
#pragma once

#include <kvbound/proofs/oracle/bounded.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>

namespace kvbound::oracle {

/// A cluster as one query head weighs it. Letters as in reference/merging/keep_kv.hpp.
struct ClusterMean {
  Row weights;             ///< w/W
  Bounded log_weight;      ///< ln W
  Bounded mean_log_score;  ///< m
  Bounded divergence;      ///< KL = sum (w/W) ln((w/W) / (p/P))
  Row key, value;          ///< k-, v-
};

/// log_scores  [members], with the errors of their evaluation
ClusterMean cluster_mean(const Row& votes, const Row& log_scores, MatrixView keys, MatrixView values);

/// ln(W / P)
Bounded log_mean_score(const Row& votes, const Row& log_scores);

/// sum_i (u_i . targets / sigma_i) v_i over the singular values that are not dropped.
struct Solution {
  Row x;
  int64_t rank = 0;
  bool decided = true;  ///< false: in double precision other directions may be dropped
};
/// All elements have one bound: Wedin's for the pseudo-inverse of a matrix that is off by the rounding of a singular
/// value decomposition with reflections and rotations.
///
/// rows   [conditions][unknowns]
/// share  singular values below this share of the largest are dropped, as are those that are 0
Solution solution(const Rows& rows, double share, const Row& targets);

/// The merged entry of a cluster.
struct MergedCluster {
  Row key, value;
  Bounded votes;
  Row log_scores;         ///< [heads]: ln(W_h / P)
  Bounded zip_scale = 1;  ///< z*/m
  bool singular = false;
  bool decided = true;  ///< false: double precision may decide a choice the other way
};

/// log_scores        [heads][members]
/// log_denominators  [heads], for joint merges
MergedCluster merge_cluster(const KeyRule& rule, MatrixView queries, double scale,
                            const reference::ClusterMembers& members, const Rows& log_scores,
                            const Row& log_denominators);

/// Attention over entries with votes, whose keys and values have error bounds: sum p exp(z) v / sum p exp(z).
Row attention(VectorView query, const Rows& keys, const Rows& values, const Row& votes, double scale);

}  // namespace kvbound::oracle
