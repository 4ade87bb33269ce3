// TOVA: rank entries by the attention that the last query pays them.
#pragma once

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// The attention that the prompt's last query pays each entry.
///
///     weights[h, j] = A^h_nj
///
/// returns  [query_heads, n], each row >= 0 with sum 1
/// throws   ShapeMismatch if no prompt query is recorded; NonFinite
/// source   TOVA (arXiv:2401.06104), section 3
Matrix last_query_attention(const LayerView& layer);

}  // namespace kvbound::reference
