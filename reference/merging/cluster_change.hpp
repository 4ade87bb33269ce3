// The change of outputs caused by one cluster's merge alone, for the queries by which it was merged, compared
// with eviction and with the best possible value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "merge_effect.hpp"
#include "merged_cache.hpp"

namespace kvbound::reference {

/// Changes of the outputs of the query heads that share the KV head, each as (sum_h
/// ||o'_h - o_h||_2^2)^(1/2), attention output units. All entries outside the cluster
/// are as before the merge.
struct ClusterChange {
  double merged = 0;   ///< the cluster is replaced by the merged entry
  double evicted = 0;  ///< the evicted members are dropped, the kept one is unchanged
  /// The smallest change that any common value v can reach if each head gives the merged entry the logit z*_h
  /// that preserves the cluster's weight:
  ///
  ///     (min_v sum_h c_h ||v - v-_h||^2)^(1/2),   c_h = (W_h / D_h)^2
  ///
  /// with W_h, D_h and v-_h by the queries' own scores. 0 for one
  /// head. A merge whose logits differ from z*_h may be below it.
  double floor = 0;
};

/// The queries of a merge, their attention over the cache before it, and the changes that clusters cause.
class ClusterChanges {
 public:
  /// queries  [heads, head_dim]
  /// scale    logits are scale * query . key
  /// before   the cache before the merge, with all members; must outlive the object
  /// throws   ShapeMismatch; NonFinite
  ClusterChanges(MatrixView queries, double scale, const CacheEntries& before);

  /// The change that one cluster causes.
  ///
  /// after   the cache after the merge
  /// throws  ShapeMismatch if the merged entry is not in `after`, or a member not in `before`
  /// source  ours
  /// proof   proofs/keep_kv.md#kkv-gqa
  ClusterChange of(const MergeCluster& cluster, const CacheEntries& after) const;

 private:
  // Attention of one query head over all entries except some.
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
