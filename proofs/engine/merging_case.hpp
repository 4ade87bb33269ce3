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

/// An evicted entry merges with the last kept entry before it, or with the first kept one if there is none: clusters of two and
/// more, the entry that stays first, the others ascending.
std::vector<Cluster> clusters_of(const Instance& instance);

/// The keys of which the instance's logits are logits: what queries read of them solves the triangle of query vectors, the
/// rest, which no query reads, is the entry's value. [tokens, rows of logits + head_dim]
Matrix keys_of(const Instance& instance);

/// One query head as if it had the KV head for itself, with several queries: the first is the one that it merges for.
struct MergingHead {
  exact::Reals predicted;              ///< ln s^ of every entry: the first query's logits
  exact::Vectors queries;              ///< with the scale in them
  std::vector<exact::Vectors> values;  ///< [2][entries], by Space
  exact::Vectors projection;           ///< its rows of W^O

  /// A value as the space has it.
  exact::Reals in(Space space, const exact::Reals& value) const;
};

/// Doubles, and the same exactly. The logits are those of keys and queries: the instance's own, but for rounding where keys
/// take more than 53 bits.
struct MergingCase {
  explicit MergingCase(const Instance& instance);

  /// Of every entry, by a query of this head.
  exact::Reals logits(size_t head, size_t query) const {
    return exact::logits(heads[head].queries[query], cache.keys);
  }
  exact::Reals predicted(size_t head, const Cluster& cluster) const;
  exact::ClusterMean mean(size_t head, const Cluster& cluster) const {
    return {cache.at(cluster), predicted(head, cluster)};
  }
  /// ln D_h, the sum of all p s^
  exact::Real log_denominator(size_t head) const;
  /// The first queries of all heads.
  exact::Vectors first_queries() const;
  /// More than the absolute terms that 50 digits round in a logit of this head, and in a sum of values.
  exact::Real logit_terms(size_t head) const;
  exact::Real value_terms(size_t head, Space space) const;
  /// The longest key.
  exact::Real key_size() const;

  Matrix keys;     ///< [tokens, key_dim]
  Matrix queries;  ///< [rows of logits, key_dim], without the scale
  exact::Entries cache;
  std::vector<Cluster> clusters;
  std::vector<MergingHead> heads;
};

/// Calls look(head, cluster) for all of them.
template <class Look>
void for_each_cluster(const MergingCase& merging, const Look& look) {
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    for (const Cluster& cluster : merging.clusters) look(h, cluster);
  }
}

/// sum |a_c b_c|
exact::Real absolute_terms(const exact::Reals& a, const exact::Reals& b);
/// More than the absolute terms that went into a cluster's logarithms.
exact::Real score_terms(const exact::Reals& log_scores);

}  // namespace kvbound::proofs
