// What rounding can do to a merge that changes nothing in exact arithmetic: how far the output over the merged cache may lie
// from that over the cache before, for the query that built the merge.
//
// Derived in reference/merge_errors.md from the numbers at hand; no constant is tuned.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/policy.hpp"
#include "merged_cache.hpp"

namespace kvbound::reference {

/// Members of a cache before a merge, as rows of it, and the row of the cache after that they became.
struct MergedRows {
  std::vector<int64_t> members;  ///< at least two
  int64_t merged = 0;
};

/// The groups of a merge as rows.
///
/// after   the cache that the merge left: each group's `into` is in it
MergedRows rows_of(const MergeGroup& group, const CacheEntries& before, const CacheEntries& after);

/// A bound on || o(query, before) - o(query, after) ||_2 as reference::attention evaluates it, where all groups were merged by
/// reference::merge_group in double precision, by this query's own raw scores (predict=current), for it alone.
///
///     || evaluation of o(before) ||  +  || evaluation of o(after) ||
///       +  ( sum_r A_r g_r || v-_r - o ||  +  sum_r A_r (1 + g_r) || error of v-_r || ) / (1 - sum_r A_r g_r)
///
/// with A_r a group's share of the attention over `before`, g_r = e^T_r - 1 and T_r how far rounding can take the merged
/// entry's logit. With key=zip T_r grows with the scale z*/m, without bound as m -> 0.
///
/// query    [head_dim]
/// scale    logits are scale * query . key
/// key      min_norm or zip: a convex combination is not lossless
/// before   the cache with all members
/// after    the cache with the merged entries in their places, all others being the same to the bit
/// returns  attention output units, >= 0; infinity where nothing can be said
/// throws   ShapeMismatch; NonFinite
/// proof    proofs/keep_kv.md#kkv-3-prime, #kkv-3
double lossless_merge_error(VectorView query, double scale, MergedKey key, const CacheEntries& before,
                            const CacheEntries& after, std::span<const MergedRows> groups);

/// How far rounding can take reference::attention's output over a cache from its exact value.   returns [head_dim]
std::vector<double> output_error(VectorView query, double scale, const CacheEntries& cache);

}  // namespace kvbound::reference
