// An instance as a cache whose entries merge.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/proofs/oracle/merging.hpp>

#include "instance.hpp"

namespace kvbound::proofs {

using Cluster = std::vector<int64_t>;

/// Logits are kScale * query . key.
inline constexpr double kScale = 0.5;

/// The clusters of an instance. An evicted entry merges with the last kept entry before it, or with the first
/// kept entry if there is none before it.
///
/// returns  clusters of at least two entries: the kept entry first, the evicted ones ascending
std::vector<Cluster> clusters_of(const Instance& instance);

/// Keys that give the instance's logits: their first components solve the triangular system of the query
/// vectors; the other components, in which all queries are zero, are the entry's value.
///
/// returns  [tokens, rows of logits + head_dim]
Matrix keys_of(const Instance& instance);

/// One query head, treated as the only one of the KV head, with several queries: clusters
/// merge for the first one.
struct MergingHead {
  exact::Reals predicted;              ///< ln s^ of every entry: the first query's logits
  exact::Vectors queries;              ///< multiplied by the scale
  std::vector<exact::Vectors> values;  ///< [2][entries], by Space
  exact::Vectors projection;           ///< its rows of W^O

  /// A value, mapped into the space.
  exact::Reals in(Space space, const exact::Reals& value) const;
};

/// An instance with keys and queries, in doubles and as the same numbers in 50 digits. Its logits
/// are the products of keys and queries, which equal the instance's logits except where keys had
/// to be rounded to 53 bits.
struct MergingCase {
  explicit MergingCase(const Instance& instance);

  /// The logits of every entry for a query of this head.
  exact::Reals logits(size_t head, size_t query) const {
    return exact::logits(heads[head].queries[query], cache.keys);
  }
  exact::Reals predicted(size_t head, const Cluster& cluster) const;
  exact::ClusterMean mean(size_t head, const Cluster& cluster) const {
    return {cache.at(cluster), predicted(head, cluster)};
  }
  /// ln D_h, the sum of all p s^
  exact::Real log_denominator(size_t head) const;
  /// Of all heads.
  exact::Reals log_denominators() const;
  /// The first queries of all heads.
  exact::Vectors first_queries() const;
  /// Upper bounds of the absolute terms that are rounded to 50 digits in a logit of this
  /// head, and in a sum of values.
  exact::Real logit_terms(size_t head) const;
  exact::Real value_terms(size_t head, Space space) const;
  /// The length of the longest key.
  exact::Real key_size() const;

  Matrix keys;     ///< [tokens, key_dim]
  Matrix queries;  ///< [rows of logits, key_dim], without the scale
  exact::Entries cache;
  std::vector<Cluster> clusters;
  std::vector<MergingHead> heads;
};

/// Calls look(head, cluster) for all heads and clusters.
template <class Look>
void for_each_cluster(const MergingCase& merging, const Look& look) {
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    for (const Cluster& cluster : merging.clusters) look(h, cluster);
  }
}

/// sum |a_c b_c|
exact::Real absolute_terms(const exact::Reals& a, const exact::Reals& b);
/// An upper bound of the absolute terms in a cluster's log scores.
exact::Real score_terms(const exact::Reals& log_scores);

}  // namespace kvbound::proofs
