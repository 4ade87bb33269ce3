// H2O: rank entries by all the attention that they ever got.
#pragma once

#include <cstdint>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// The attention that the window's queries pay each entry, added up.
///
///     sum[h, j] = sum_{i in window} A^h_ij,   A = causal softmax over the whole prompt
///
/// layer    its last `window` recorded queries count; all of the prompt's, if so many are recorded
/// window   1..layer.window_queries()
/// returns  [query_heads, n], each row >= 0 with sum `window`
/// throws   ShapeMismatch if the window is not recorded; NonFinite
/// source   H2O (arXiv:2306.14048), section 4
Matrix accumulated_attention(const LayerView& layer, int64_t window);

}  // namespace kvbound::reference
