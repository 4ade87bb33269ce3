// SnapKV: rank the prompt's entries by the attention that its last queries pay them.
#pragma once

#include <cstdint>
#include <functional>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// Shows the window's attention weights, one query at a time; those in memory at once are few.
///
/// layer    its last `window` recorded queries are the observation window
/// kv_head  whose query heads
/// window   1..layer.window_queries()
/// visit    called with a query head of the group and the weights [n] of one of its queries: >= 0, sum 1, and 0
///          in the query's future. Every query of every head once; a head's in the order of their positions
/// throws   ShapeMismatch if the window is not recorded; NonFinite
void visit_window_attention(const LayerView& layer, int64_t kv_head, int64_t window,
                            const std::function<void(int64_t query_head, VectorView weights)>& visit);

/// Sums over a window as means.
///
/// sums     [rows, entries], added up over `window` queries
/// returns  sums / window
Matrix window_mean(Matrix sums, int64_t window);

/// The mean attention that the window's queries pay each entry.
///
///     mean[h, j] = (1 / window) sum_{i in window} A^h_ij,   A = causal softmax over the whole prompt
///
/// layer    its last `window` recorded queries are the observation window
/// window   1..layer.window_queries()
/// returns  [query_heads, n], each row >= 0 with sum 1; not pooled. An entry in a query's future counts as 0
/// throws   ShapeMismatch if the window is not recorded; NonFinite
/// source   SnapKV (arXiv:2404.14469), section 3
Matrix window_attention(const LayerView& layer, int64_t window);

/// Each score's largest neighbour.
///
///     pooled[r, j] = max { scores[r, j'] : |j' - j| <= (width - 1) / 2 },  cut at both ends
///
/// scores   [rows, entries]
/// width    odd, >= 1; 1 changes nothing
/// returns  [rows, entries], >= scores
/// throws   ShapeMismatch if the width is even or below 1
Matrix max_pool(MatrixView scores, int64_t width);

/// The mean over the query heads that share a KV head.
///
///     mean[g, j] = (1 / group_size) sum_{h in group g} scores[h, j]
///
/// scores      [query_heads, entries]
/// group_size  divides query_heads
/// returns     [query_heads / group_size, entries]
/// throws      ShapeMismatch if group_size does not divide
Matrix group_mean(MatrixView scores, int64_t group_size);

}  // namespace kvbound::reference
