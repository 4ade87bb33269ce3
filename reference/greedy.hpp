// The selection that removes one entry after the other, each time the one that is missed least.
#pragma once

#include <cstdint>
#include <vector>

#include "core/session.hpp"

namespace kvbound::reference {

/// The order in which one KV head's candidates leave.
///
///     next out = argmin_j sum_{h in group, i in window} || o'_hi - o_hi ||^2,  o' without j and all who left before
///
/// Ties: the larger index leaves. With D = o' - o for those who left, R the mass of those who stay and s = A_j / (R - A_j), one more
/// costs || (1 + s) D + s (o - v_j) ||^2: D . v_j is kept up to date for all j, so a removal costs
/// O(candidates (window group_size + head_dim)), and nothing is scored twice. An entry that holds more than half of R would cancel
/// there; the output without it is kept instead. Where not even that has mass in double precision, it is missed most.
///
/// layer       its last `window` recorded queries judge
/// candidates  the first so many positions; each query sees some other position, too
/// count       0..candidates: how many leave
/// returns     [count] positions, first out first. The first k of a longer order are the shorter one
/// throws      ShapeMismatch; NonFinite
/// source      ours; the change of a set is proofs/obcache.md#obc-set
std::vector<int64_t> removal_order(const LayerView& layer, int64_t kv_head, int64_t window,
                                   int64_t candidates, int64_t count);

}  // namespace kvbound::reference
