// How a layer's budget is shared out among its KV heads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/session.hpp>

#include "ranking.hpp"

namespace kvbound::reference {

/// Each KV head's budget by the policy's allocation.
///
///     uniform, pyramid  the budgets as they are: pyramid's differ between layers only
///     adakv             by attention, whatever the policy scores by (allocation.hpp)
///
/// policy   its host ranks entries
/// ranking  of the layer, by that policy
/// budgets  [kv_heads] before the allocation, always-kept entries included
/// known    of this layer
/// returns  [kv_heads]; the sum is that of `budgets`
std::vector<int64_t> head_budgets(const LayerView& layer, const Policy& policy, const Ranking& ranking,
                                  std::span<const int64_t> budgets, LayerScores& known);

}  // namespace kvbound::reference
