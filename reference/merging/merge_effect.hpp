// The effect of merges on a query: the output over the cache before the merges minus the
// output over the merged cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "keep_kv.hpp"
#include "merged_cache.hpp"

namespace kvbound::reference {

/// The members of a cluster before the merge, and the row of the merged entry in the cache after it.
struct MergedCluster {
  ClusterMembers members;
  int64_t row = 0;
};

/// A recorded cluster.
///
/// before  the cache before the merge
/// after   the cache after the merge
/// throws  ShapeMismatch if a member is not in `before` or the merged entry not in `after`
MergedCluster merged_cluster(const MergeCluster& cluster, const CacheEntries& before,
                             const CacheEntries& after);

/// The effect of merges on queries, one row per query.
struct MergeEffect {
  Matrix change;          ///< [queries, head_dim]: o - o', in attention output units
  Matrix member_logits;   ///< [queries, members], cluster by cluster, without votes, natural log
  Matrix merged_logits;   ///< [queries, clusters], without votes, natural log
  Matrix merged_weights;  ///< [queries, clusters]: A'_r, the merged entries' attention in the merged cache
  /// [queries]: all members' total attention in the cache before the merge.
  std::vector<double> members_weight;
  std::vector<double> log_sum_exp;  ///< [queries]: over the cache before the merge, votes included
};

/// The output o over the cache before the merge, with the members in place
/// of the merged entries, minus the output o' over the merged cache.
///
///     o - o' = sum_r ( sum_{j in r} A_j (v_j - o') - A'_r (D'/D) (v_r - o') )
///
/// A and D are the attention weights and their denominator over the cache before the merge, A' and D' over
/// the merged cache. Entries that are in both caches have no term, so for a lossless merge the result is only
/// the rounding of the merged entries' terms. If D' > 2 D, where this form would be a small difference times
/// a large factor, the difference sum_j A_j (v_j - o') over all entries before the merge is formed instead.
///
/// queries  [queries, head_dim]
/// scale    logits are scale * query . key
/// cache    the merged cache
/// clusters   disjoint, each with another row
/// throws   ShapeMismatch; NonFinite
MergeEffect merge_effect(MatrixView queries, double scale, const CacheEntries& cache,
                         std::span<const MergedCluster> clusters);

}  // namespace kvbound::reference
