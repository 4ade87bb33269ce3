// Merging by its definitions, in 50 digits: as reals, or with a bound on each number's
// error in double precision.
//
// Letters as in proofs/keep_kv.md: p votes, s scores (kept as logarithms), w = p s,
// W and P their sums over a cluster, k- and v- the means weighted by w, m the mean
// of ln s, z* = ln(W / P), KL = m - z*. Queries include the scale: a logit is q . k.
#pragma once

#include "output_change.hpp"

namespace kvbound::oracle {

/// A cache of one KV head, or some entries of it.
template <class Number>
struct EntriesOf {
  size_t count() const { return votes.size(); }
  EntriesOf at(Indices indices) const;

  RowsOf<Number> keys, values;
  RowOf<Number> votes;
};

/// ln(W / P)
template <class Number>
Number log_mean_score(const RowOf<Number>& votes, const RowOf<Number>& log_scores);

/// A cluster's means by one query head's scores.
template <class Number>
struct ClusterMeanOf {
  ClusterMeanOf(const EntriesOf<Number>& members, const RowOf<Number>& log_scores);

  RowOf<Number> weights;     ///< w / W
  Number votes;              ///< P
  Number log_weight;         ///< ln W
  Number mean_score;         ///< m
  Number target;             ///< z*
  Number divergence;         ///< KL(w/W || p/P) = sum (w/W) ln((w/W) / (p/P)); 0 for equal scores, exactly
  RowOf<Number> key, value;  ///< k-, v-
};

/// One cluster for several query heads: `joint` of reference/merging/keep_kv.hpp.
template <class Number>
struct JointMeanOf {
  /// queries           each head's query, multiplied by the scale
  /// log_denominators  ln D_h; not read for one head
  JointMeanOf(const std::vector<ClusterMeanOf<Number>>& heads, const RowsOf<Number>& queries,
              const RowOf<Number>& log_denominators);

  RowOf<Number> value;    ///< v_r = sum_h c_h v-_h / sum c, c_h = (W_h / D_h)^2
  Number votes;           ///< P
  RowOf<Number> key;      ///< mean_h k-_h
  RowOf<Number> missing;  ///< target logits q_h . k-_h - KL_h minus the logits of `key`
};

/// The convex weights of D2O and KVMerger, the target first: reference/merging/merge_baselines.hpp.
template <class Number>
RowOf<Number> similarity_weights(const RowsOf<Number>& keys);
template <class Number>
RowOf<Number> gaussian_weights(const RowsOf<Number>& keys);

}  // namespace kvbound::oracle

namespace kvbound::exact {

using oracle::gaussian_weights;
using oracle::similarity_weights;
using ClusterMean = oracle::ClusterMeanOf<Real>;
using Entries = oracle::EntriesOf<Real>;

/// The largest KL / (max ln s - min ln s) of all scores of a cluster, by its smallest share of votes.
///
///     h(rho) = max_{x > 0} sigma - ln(W) / x,   W = 1 - rho + rho e^x, sigma = rho e^x / W
///
/// smallest_share  rho = min p / P, 0 < rho <= 1/2
/// returns         h, 0 < h < 1; h(1/2) = 0.1699...
/// proof           proofs/keep_kv.md#kkv-kl
Real divergence_per_range(const Real& smallest_share);

/// q . k_j
Reals logits(const Reals& query, const Vectors& keys);
/// The query's attention over entries with votes: softmax(z + ln p).
Query attention(const Reals& logits, const Reals& votes, const Vectors& values);

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

/// The cache without the clusters' members, followed by the merged entries; clusters
/// have no member in common.
Entries with_merged(const Entries& cache, const std::vector<std::vector<int64_t>>& clusters,
                    const std::vector<MergedEntry>& merged);

/// The query's attention after a cluster was replaced by one entry, which comes last.
Query merged_attention(const Reals& logits, const Entries& cache, const std::vector<int64_t>& cluster,
                       const Real& merged_logit, const MergedEntry& merged);

/// A matrix's singular values in descending order, with left and right singular vectors; one per row.
struct SingularValues {
  explicit SingularValues(const Vectors& rows);

  /// sum over the `rank` largest of (u_i . targets / sigma_i) v_i
  Reals solution(const Reals& targets, size_t rank) const;

  Reals sigmas;
  Vectors left, right;  ///< u_i, v_i; v_i of sigma_i = 0 is 0
};

/// The joint merge of one cluster, whose key is corrected along the `rank` largest directions of the queries.
struct JointMean : oracle::JointMeanOf<Real> {
  JointMean(const std::vector<ClusterMean>& heads, const Vectors& queries, const Reals& log_denominators)
      : JointMeanOf(heads, queries, log_denominators), singular(queries) {}

  MergedEntry merged(size_t rank) const {
    return {combination(1, key, 1, singular.solution(missing, rank)), value, votes};
  }

  SingularValues singular;  ///< of the queries
};

}  // namespace kvbound::exact
