// The greedy selection: removes one entry at a time, always the one whose removal changes the outputs least.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// The order in which one KV head's candidates are removed.
///
///     next = argmin_j sum_{h in group, i in window} || o'_hi - o_hi ||^2
///
/// with o' the output without j and all removed before. Ties: the larger index is removed. Over the remaining
/// entries, let A be the attention, C = sum_j A_j (v_j - o) and R the mass. Then o' - o = C / R, and after
/// removing j || o' - o ||^2 = || C - A_j (v_j - o) ||^2 / (R - A_j)^2.
///
/// The products C . v_j are updated for all j, so a removal costs
/// O(candidates (window group_size + head_dim)). When a query has lost half of its mass, its sums are formed
/// anew, at O(candidates head_dim). If one entry holds more than half of the rest, separate sums without that
/// entry are used for its removal. Both bound cancellation. Memory: about six numbers per candidate, window
/// query and query head of the group.
///
/// layer       its last `window` recorded queries define the error
/// candidates  the candidates are positions 0..candidates - 1, at most n - window
/// count       0..candidates: number of removals
/// returns     [count] positions in order of removal. The order for a smaller count is a prefix
/// throws      ShapeMismatch; NonFinite
/// source      ours; the change of a set is proofs/obcache.md#obc-set
std::vector<int64_t> removal_order(const LayerView& layer, int64_t kv_head, int64_t window,
                                   int64_t candidates, int64_t count);

}  // namespace kvbound::reference
