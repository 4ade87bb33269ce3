// Which entries have the largest scores.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The k entries of largest score, best first.
///
/// Which: those that come first when entries are ordered by falling score, equal scores by rising index (so
/// among ties the smaller index wins). In what order: that one.
///
/// scores   [entries]; +infinity is a score like any other
/// k        0..entries
/// returns  [k] indices
/// throws   ShapeMismatch if k is out of range; NonFinite if a score is NaN
std::vector<int64_t> rank_top(VectorView scores, int64_t k);

/// The same k entries as rank_top, in ascending order of their indices.
std::vector<int64_t> select_top(VectorView scores, int64_t k);

}  // namespace kvbound::reference
