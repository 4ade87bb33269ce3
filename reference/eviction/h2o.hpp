// H2O: ranks entries by the sum of the attention that they have received.
#pragma once

#include <cstdint>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// The attention that each entry receives from the window's queries, summed.
///
///     sum[h, j] = sum_{i in window} A^h_ij,   A = causal softmax over the whole prompt
///
/// layer    the sum is over its last `window` recorded queries
/// window   1..layer.window_queries()
/// returns  [query_heads, n], each row >= 0 with sum `window`
/// throws   ShapeMismatch if the window is not recorded; NonFinite
/// source   H2O (arXiv:2306.14048), section 4
Matrix accumulated_attention(const LayerView& layer, int64_t window);

}  // namespace kvbound::reference
