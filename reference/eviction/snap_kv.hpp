// SnapKV: keeps the observation window, and of the entries before it those to which the
// window's queries attend most.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// SnapKV's observation window. Both numbers are equal, except when a cache is rebuilt during decoding.
struct ObservationWindow {
  int64_t queries = 0;  ///< number of last queries whose attention is averaged
  int64_t kept = 0;     ///< number of newest positions, which are always kept; all others are candidates
};

/// SnapKV's selection in one layer, and the scores on which it is based.
struct SnapKvSelection {
  Matrix head_scores;  ///< [query_heads, candidates]: pooled
  Matrix scores;       ///< [kv_heads, candidates]: their mean over each group of query heads
  std::vector<std::vector<int64_t>> kept;  ///< [kv_heads]: ascending positions
};

/// Returns window_attention_sums of a layer, computed or cached.
using WindowAttentionSums = std::function<const Matrix&(int64_t window)>;

/// SnapKV's compression of a prompt.
///
///     A      = causal softmax over the prompt
///     a^h_j  = max_{|j' - j| <= (pool - 1) / 2} (1 / window) sum_{i in window} A^h_ij'
///     kept_g = the k largest of mean_{h in g} a^h_j, and the window
///
/// pool      width of the max-pool, odd; 1: no pooling
/// budgets   [kv_heads]: number of entries kept, the window's included
/// throws    ShapeMismatch if the window is not recorded or a budget is out of range; NonFinite
/// source    SnapKV (arXiv:2404.14469), Listing 1, which has one query head per KV head; the
///           mean over the group is ours
SnapKvSelection snap_kv(const LayerView& layer, const ObservationWindow& window, int64_t pool,
                        std::span<const int64_t> budgets, const WindowAttentionSums& attention_sums);

/// Means over a window, from sums.
///
/// sums     [rows, entries], summed over `window` queries
/// returns  sums / window
Matrix window_mean(const Matrix& sums, int64_t window);

/// The mean attention that each entry receives from the window's queries.
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
