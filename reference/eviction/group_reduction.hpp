// Reduction of scores over the query heads that share a KV head.
#pragma once

#include <cstdint>

#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The mean (snap_kv.hpp's group_mean) or the sum (obcache.hpp's group_sum) over each KV head's query heads.
///
/// scores      [query_heads, entries]
/// group_size  divides query_heads
/// returns     [query_heads / group_size, entries]
/// throws      ShapeMismatch if group_size does not divide
Matrix reduce_group(MatrixView scores, int64_t group_size, GroupReduction reduction);

}  // namespace kvbound::reference
