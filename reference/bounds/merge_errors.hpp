// A bound on the output change of a lossless merge, which is 0
// in exact arithmetic, for the query by which it was merged.
//
// Derived in reference/bounds/merge_errors.md; computed from the given numbers, without tuned constants.
#pragma once

#include <span>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/merging/merge_effect.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// A bound on || o - o' ||_2 as merge_effect evaluates it, if all clusters were merged by merge_cluster in
/// double precision, by this query's own raw scores (predict=current), and for this query alone.
///
///     sum_r ( sum_{j in r} A_j t_j ||v_j - o'|| + A_r (t_r + e^T_r - 1) ||v_r - o'||
///             + A_r || error of v_r || )
///
/// with A_r a cluster's share of the attention before the merge, t the relative rounding error of one entry's
/// weight, and T_r the rounding error of the merged entry's logit. The other entries of the cache, and their
/// rounding errors, do not enter. With key=zip, T_r grows with the scale z*/m, without limit as m -> 0; the
/// bound is at most the largest possible distance of means of the values.
///
/// query    [head_dim]
/// scale    logits are scale * query . key
/// key      min_norm or zip: a convex combination is not lossless
/// cache    the merged cache
/// clusters   disjoint, each with another row
/// returns  attention output units, >= 0; 0 for no clusters
/// throws   ShapeMismatch; NonFinite
/// proof    proofs/keep_kv.md#kkv-3-prime, #kkv-3
double lossless_merge_error(VectorView query, double scale, MergedKey key, const CacheEntries& cache,
                            std::span<const MergedCluster> clusters);

/// The same for merges that were computed, and whose effect was evaluated, by the same
/// steps in another arithmetic.
double lossless_merge_error(VectorView query, double scale, MergedKey key, const CacheEntries& cache,
                            std::span<const MergedCluster> clusters, const Arithmetic& arithmetic);

}  // namespace kvbound::reference
