// What rounding can do to a merge that changes nothing in exact arithmetic, for the query that built it.
//
// Derived in reference/bounds/merge_errors.md from the numbers at hand; no constant is tuned.
#pragma once

#include <span>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/merging/merge_effect.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// A bound on || o - o' ||_2 as merge_effect evaluates it, where all clusters were merged by merge_cluster in double precision, by
/// this query's own raw scores (predict=current), for it alone.
///
///     sum_r ( sum_{j in r} A_j t_j ||v_j - o'|| + A_r (t_r + e^T_r - 1) ||v_r - o'|| + A_r || error of v_r || )
///
/// with A_r a cluster's share of the attention before, t what rounding does to the weight of one entry and T_r how far it can take
/// the merged entry's logit. All other entries of the cache, and what rounding does to them, are of no matter. With key=zip T_r
/// grows with the scale z*/m, without bound as m -> 0; the bound is never more than what means of the values can be apart.
///
/// query    [head_dim]
/// scale    logits are scale * query . key
/// key      min_norm or zip: a convex combination is not lossless
/// cache    in which the merged entries are
/// clusters   disjoint, each of another row
/// returns  attention output units, >= 0; 0 for no clusters
/// throws   ShapeMismatch; NonFinite
/// proof    proofs/keep_kv.md#kkv-3-prime, #kkv-3
double lossless_merge_error(VectorView query, double scale, MergedKey key, const CacheEntries& cache,
                            std::span<const MergedCluster> clusters);

/// The same of merges that were computed, and whose effect was evaluated, in another arithmetic by the same steps.
double lossless_merge_error(VectorView query, double scale, MergedKey key, const CacheEntries& cache,
                            std::span<const MergedCluster> clusters, const Arithmetic& arithmetic);

}  // namespace kvbound::reference
