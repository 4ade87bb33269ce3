// The division of a layer's budget among its KV heads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/session.hpp>

#include "ranking.hpp"

namespace kvbound::reference {

/// Each KV head's budget by the policy's allocation.
///
///     uniform, pyramid, headkv  `budgets` unchanged: they are known before any entry is ranked
///     adakv                     by attention, also if the policy ranks by another score (allocation.hpp)
///
/// policy   its host ranks entries
/// ranking  of the layer, by that policy
/// budgets  [kv_heads] before the allocation, always-kept entries included
/// known    the layer's cached scores
/// returns  [kv_heads]; the sum is that of `budgets`
std::vector<int64_t> head_budgets(const LayerView& layer, const Policy& policy, const Ranking& ranking,
                                  std::span<const int64_t> budgets, LayerScores& known);

}  // namespace kvbound::reference
