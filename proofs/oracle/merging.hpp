// Merging in 50 digits, by its definitions.
//
// Letters as in proofs/keep_kv.md: p votes, s scores (kept as logarithms), w = p s,
// W and P their sums over a cluster, k- and v- the means weighted by w, m the mean
// of ln s, z* = ln(W / P), KL = m - z*. Queries include the scale: a logit is q . k.
#pragma once

#include "output_change.hpp"

namespace kvbound::exact {

/// A cache of one KV head, or some entries of it.
struct Entries {
  size_t count() const { return votes.size(); }
  Entries at(Indices indices) const;

  Vectors keys, values;
  Reals votes;
};

/// q . k_j
Reals logits(const Reals& query, const Vectors& keys);
/// The query's attention over entries with votes: softmax(z + ln p).
Query attention(const Reals& logits, const Reals& votes, const Vectors& values);

/// A cluster's means by one query head's scores.
struct ClusterMean {
  ClusterMean(const Entries& members, const Reals& log_scores);

  Reals weights;     ///< w / W
  Real votes;        ///< P
  Real log_weight;   ///< ln W
  Real mean_score;   ///< m
  Real target;       ///< z*
  Real divergence;   ///< KL(w/W || p/P) = sum (w/W) ln((w/W) / (p/P)); 0 for equal scores, exactly
  Reals key, value;  ///< k-, v-
};

/// The entry that replaces a cluster.
struct MergedEntry {
  Reals key, value;
  Real votes;
};

/// k- - KL q / ||q||^2, q != 0
MergedEntry min_norm_merge(const ClusterMean& mean, const Reals& query);
/// k- z* / m, or k- if KL = 0; m != 0 or KL = 0
MergedEntry zip_merge(const ClusterMean& mean);
/// k-
MergedEntry convex_merge(const ClusterMean& mean);

/// The cache without the clusters' members, followed by the merged entries.
Entries with_merged(const Entries& cache, const std::vector<std::vector<int64_t>>& clusters,
                    const std::vector<MergedEntry>& merged);

/// The convex weights of D2O and KVMerger, the target first: reference/merging/merge_baselines.hpp.
Reals similarity_weights(const Vectors& keys);
Reals gaussian_weights(const Vectors& keys);

/// The query's attention after a cluster was replaced by one entry, which comes last.
Query merged_attention(const Reals& logits, const Entries& cache, const std::vector<int64_t>& cluster,
                       const Real& merged_logit, const MergedEntry& merged);

/// A matrix's singular values in descending order, with left and right singular vectors; one per row. The matrix must
/// not have more rows than columns.
struct SingularValues {
  explicit SingularValues(const Vectors& rows);

  /// sum over the `rank` largest of (u_i . targets / sigma_i) v_i
  Reals solution(const Reals& targets, size_t rank) const;
  /// The number of singular values that are at least `share` of the largest, and not 0.
  size_t rank(const Real& share) const;

  Reals sigmas;
  Vectors left, right;  ///< u_i, v_i; v_i of sigma_i = 0 is 0
};

/// The joint merge of one cluster for several query heads: `joint` of reference/merging/keep_kv.hpp.
struct JointMean {
  /// queries           each head's query, multiplied by the scale
  /// log_denominators  ln D_h
  JointMean(const std::vector<ClusterMean>& heads, const Vectors& queries, const Reals& log_denominators);

  /// The merged entry whose key is corrected along the `rank` largest directions.
  MergedEntry merged(size_t rank) const { return {combination(1, key, 1, correction(rank)), value, votes}; }
  Reals correction(size_t rank) const { return singular.solution(missing, rank); }

  Reals shares;             ///< c_h / sum c, c_h = (W_h / D_h)^2
  Reals value;              ///< v_r = sum_h c_h v-_h / sum c
  Real votes;               ///< P
  Reals key;                ///< mean_h k-_h
  Reals missing;            ///< target logits q_h . k-_h - KL_h minus the logits of `key`
  SingularValues singular;  ///< of the queries
};

}  // namespace kvbound::exact
