// Selection of the entries of largest score.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The k entries of largest score, best first.
///
/// Entries are ordered by descending score, equal scores by ascending index (so among ties the smaller index
/// wins); the result is the first k of this order, in this order.
///
/// scores   [entries]; +infinity is allowed
/// k        0..entries
/// returns  [k] indices
/// throws   ShapeMismatch if k is out of range; NonFinite if a score is NaN
std::vector<int64_t> rank_top(VectorView scores, int64_t k);

/// The same k entries as rank_top, in ascending order of their indices.
std::vector<int64_t> select_top(VectorView scores, int64_t k);

}  // namespace kvbound::reference
