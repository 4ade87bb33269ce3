// Oracle recall: the true error of evicting each entry, and the share of the most important
// entries that a score finds.
#pragma once

#include <cstdint>
#include <span>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// The true error of evicting each of the prompt's entries, alone, at one decode step.
///
///     errors[h, j] = || o^h - o^h_(-j) ||_2^2
///
/// with o^h the step's output over all entries, the step's own included, and o^h_(-j)
/// the output without entry j.
///
/// shape          of the layer
/// scale          logits are scale * query . key
/// keys, values   [kv_heads, n + t, head_dim]: the prompt's n entries, then those of steps 1..t, t >= 1
/// queries        [query_heads, head_dim] of step t
/// prompt_tokens  n
/// returns        [query_heads, n], >= 0, squared units of the values
/// throws         ShapeMismatch; NonFinite if a logit is NaN or infinite, or an error is NaN
/// source         OBCache (arXiv:2510.07651), Figure 2; evaluated in the form `exact` of obcache.hpp
Matrix eviction_errors(const LayerShape& shape, double scale, TensorView keys, TensorView values,
                       MatrixView queries, int64_t prompt_tokens);

/// The share of the wanted entries that are among the found ones.
///
///     |wanted and found| / |wanted|
///
/// wanted   ascending indices, at least one
/// found    ascending indices
/// returns  0..1
/// throws   ShapeMismatch if `wanted` is empty
double share_found(std::span<const int64_t> wanted, std::span<const int64_t> found);

/// The share of the k truly most important entries that are among the k entries of largest score.
///
///     recall@k = |top_k(scores) and top_k(truth)| / k
///
/// Ties, in scores and in truth: the smaller index comes first.
///
/// scores   [entries]; +infinity is a score like any other
/// truth    [entries]: the numbers that define the true ranking; may be +infinity
/// k        1..entries
/// returns  0..1
/// throws   ShapeMismatch if the lengths differ or k is out of range; NonFinite if a number is NaN
/// source   OBCache, Figure 2
double recall(VectorView scores, VectorView truth, int64_t k);

}  // namespace kvbound::reference
