// What one cluster's merge alone does to the queries that built it, beside what could have been done instead.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "merge_effect.hpp"
#include "merged_cache.hpp"

namespace kvbound::reference {

/// Changes of the outputs of the query heads that share the KV head, each as (sum_h ||o'_h - o_h||_2^2)^(1/2), attention output
/// units. All other entries are as they were before the merge.
struct ClusterChange {
  double merged = 0;   ///< the cluster is the merged entry
  double evicted = 0;  ///< the members that left are gone, the one that stays is as it was
  /// No value does better that all heads share if each head gives the merged entry the logit z*_h which keeps the cluster's weight:
  ///
  ///     (min_v sum_h c_h ||v - v-_h||^2)^(1/2),   c_h = (W_h / D_h)^2
  ///
  /// with W_h, D_h and v-_h by the queries' own scores. 0 for one head. A merge that misses these logits may be below it.
  double floor = 0;
};

/// The cache before a merge as its queries see it.
class ClusterChanges {
 public:
  /// queries  [heads, head_dim]
  /// scale    logits are scale * query . key
  /// before   with all members as they were; outlives this
  /// throws   ShapeMismatch; NonFinite
  ClusterChanges(MatrixView queries, double scale, const CacheEntries& before);

  /// after   has the merged entry
  /// throws  ShapeMismatch if it does not, or a member was not there before
  /// source  ours
  /// proof   proofs/keep_kv.md#kkv-gqa
  ClusterChange of(const MergeCluster& cluster, const CacheEntries& after) const;

 private:
  // Attention of one query head over all entries but some.
  struct Rest {
    double log_sum_exp = 0;  // natural log, votes included
    std::vector<double> output;
  };
  Rest without(int64_t head, std::span<const int64_t> gone) const;
  Rest attend_without(int64_t head, std::span<const int64_t> gone) const;
  double floor_of(std::span<const int64_t> members) const;

  Matrix queries_;
  double scale_;
  const CacheEntries& before_;
  Matrix logits_;   // [heads, entries], votes included
  Matrix outputs_;  // [heads, head_dim]
  std::vector<double> log_sum_exp_;
};

}  // namespace kvbound::reference
