// TOVA: ranks entries by the attention that they receive from the last query.
#pragma once

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// The attention that each entry receives from the prompt's last query.
///
///     weights[h, j] = A^h_nj
///
/// returns  [query_heads, n], each row >= 0 with sum 1
/// throws   ShapeMismatch if no prompt query is recorded; NonFinite
/// source   TOVA (arXiv:2401.06104), section 3
Matrix last_query_attention(const LayerView& layer);

}  // namespace kvbound::reference
