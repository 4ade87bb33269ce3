// The selection that removes one entry after the other, each time the one that is missed least.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// The order in which one KV head's candidates leave.
///
///     next out = argmin_j sum_{h in group, i in window} || o'_hi - o_hi ||^2,  o' without j and all who left before
///
/// Ties: the larger index leaves. With A the attention of those who are left, C = sum over them of A_j (v_j - o) and R their mass,
/// o' - o is C / R, and without one more || C - A_j (v_j - o) ||^2 / (R - A_j)^2. C . v_j is kept up to date for all j, so a removal
/// costs O(candidates (window group_size + head_dim)). As soon as half of a query's mass is gone its sums are formed anew, at
/// O(candidates head_dim), and without the entry that holds more than half of what is left, if one does: so nothing cancels.
/// Memory: some six numbers per candidate, window query and query head of the group.
///
/// layer       its last `window` recorded queries judge
/// candidates  the first so many positions, at most n - window
/// count       0..candidates: how many leave
/// returns     [count] positions, first out first. The first k of a longer order are the shorter one
/// throws      ShapeMismatch; NonFinite
/// source      ours; the change of a set is proofs/obcache.md#obc-set
std::vector<int64_t> removal_order(const LayerView& layer, int64_t kv_head, int64_t window,
                                   int64_t candidates, int64_t count);

}  // namespace kvbound::reference
