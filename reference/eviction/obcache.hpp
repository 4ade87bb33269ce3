// Scores of cache entries by the squared change of queries' outputs, from OBCache's Taylor terms or exactly.
//
// For one query with attention weights A, logits z (without votes) and output o, all over
// the entries that it sees:
//
//     value   A_j^2 || v_j ||^2                     the exact change if v_j is zeroed and A does not change
//     key     A_j^2 z_j^2 || v_j - o ||^2           E(t)/t^2 as t -> 0, k_j shrunk to (1 - t) k_j
//     joint   A_j^2 || v_j + z_j (v_j - o) ||^2     the same with k_j and v_j shrunk together
//     exact   A_j^2 || v_j - o_(-j) ||^2            the change if j is removed; o_(-j) the output without j
//     slot    || o' - o ||^2, k_j = v_j = 0         OBCache's eq. 1 without approximation; for recall only
//
// exact equals (A_j / (1 - A_j))^2 || v_j - o ||^2, which cancels as A_j -> 1. This form is used only where
// A_j <= 1/2. At most one entry, the dominant one, holds more: for it o_(-j), 1 - A_j and the others' weights
// are computed from the softmax of the other entries; the same holds for joint and slot. key is evaluated as
// printed: for an entry with A_j near 1, v_j - o has the rounding error of o.
//
// All scores but `value` have the form w^2 || a v_j - b o ||^2, so one product V o^T
// serves all entries: a^2 |v_j|^2 - 2 a b v_j . o + b^2 |o|^2. Where that cancels to
// less than 2^-13 of its terms, the difference is formed element by element.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/session.hpp>

#include "value_space.hpp"

namespace kvbound::reference {

using kvbound::Change;

/// One KV head's cache, as the input of scoring.
struct ScoredCache {
  MatrixView keys;           ///< [entries, head_dim]
  MatrixView values;         ///< [entries, head_dim]
  MatrixView squared_norms;  ///< [heads, entries]: ValueSpace::squared_norms of the values, per query head
  std::span<const ValueSpace> spaces;  ///< [heads]
  /// [entries], p > 0; empty: 1 for all. Weights and outputs include the votes, the logits z do not.
  VectorView votes = {};
};

/// Output and scores of one query per query head; every query sees the whole cache.
struct ScoredAttention {
  Matrix output;   ///< [heads, head_dim]
  Matrix weights;  ///< A [heads, entries]
  Matrix scores;   ///< [heads, entries], >= 0; +infinity for `exact` of the only entry
};

/// Attention over a cache, and the scores of its entries.
///
/// queries  [heads, head_dim], the query heads of one KV head
/// throws   ShapeMismatch; NonFinite if a logit is NaN or infinite, or a score is NaN
/// source   OBCache (arXiv:2510.07651), Table 2 and eq. 1; exact: ours, KeepKV
///          (arXiv:2504.09936) eq. 4 implies it
/// proof    proofs/obcache.md
ScoredAttention scored_attention(Change change, MatrixView queries, const ScoredCache& cache, double scale);

/// The scores of the prompt's entries, summed over the window's queries.
///
///     scores[h, j] = sum_{i in window, j <= position of i} score^h_ij
///
/// layer    the sum is over its last `window` recorded queries
/// window   1..layer.window_queries()
/// returns  [query_heads, n], >= 0; not pooled. Products are tokens x head_dim; no tokens x
///          model_dim product is formed
/// throws   ShapeMismatch if the window is not recorded; NonFinite
/// source   OBCache, Algorithm 1
Matrix window_scores(const LayerView& layer, int64_t window, Change change, Space space);

/// The sum over the query heads that share a KV head.
///
///     sum[g, j] = sum_{h in group g} scores[h, j]
///
/// scores      [query_heads, entries]
/// group_size  divides query_heads
/// returns     [query_heads / group_size, entries]
/// throws      ShapeMismatch if group_size does not divide
/// source      OBCache, eq. 33-35
Matrix group_sum(MatrixView scores, int64_t group_size);

}  // namespace kvbound::reference
