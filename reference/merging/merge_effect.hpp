// What entries that were replaced by merged ones mean to a query: the output with them less that without.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "keep_kv.hpp"
#include "merged_cache.hpp"

namespace kvbound::reference {

/// Members as they were before they merged, and the row of the entry of a cache that stands for them.
struct MergedCluster {
  ClusterMembers members;
  int64_t row = 0;
};

/// A recorded cluster.
///
/// before  has all members
/// after   has the merged entry
/// throws  ShapeMismatch if they do not
MergedCluster merged_cluster(const MergeCluster& cluster, const CacheEntries& before,
                             const CacheEntries& after);

/// Rows are queries.
struct MergeEffect {
  Matrix change;          ///< [queries, head_dim]: o - o', in attention output units
  Matrix member_logits;   ///< [queries, members], cluster by cluster, without votes, natural log
  Matrix merged_logits;   ///< [queries, clusters], likewise
  Matrix merged_weights;  ///< [queries, clusters]: A'_r, attention that merged entries get in the cache
  std::vector<double>
      members_weight;  ///< [queries]: attention that all members together get in the cache before
  std::vector<double> log_sum_exp;  ///< [queries]: over the cache before, votes included
};

/// The output o over the cache before, which has the members in the place of merged entries, less the output o' over the cache.
///
///     o - o' = sum_r ( sum_{j in r} A_j (v_j - o') - A'_r (D'/D) (v_r - o') )
///
/// A and D are the attention weights and their denominator over the cache before, A' and D' over the cache. Entries that are in
/// both do not occur: where a merge changes nothing, the result is as small as the rounding of what merged. Only if D' > 2 D,
/// where that form would be a small difference times a large factor, are the outputs themselves subtracted.
///
/// queries  [queries, head_dim]
/// scale    logits are scale * query . key
/// cache    in which the merged entries are
/// clusters   disjoint, each of another row
/// throws   ShapeMismatch; NonFinite
MergeEffect merge_effect(MatrixView queries, double scale, const CacheEntries& cache,
                         std::span<const MergedCluster> clusters);

}  // namespace kvbound::reference
