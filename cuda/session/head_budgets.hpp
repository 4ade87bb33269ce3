// The division of a layer's budget among its KV heads, at the prompt's end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>

#include "layer_scores.hpp"
#include "ranking.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// reference::head_budgets: each KV head's budget by the policy's allocation.
///
/// policy   its host ranks entries
/// ranking  of the layer, by that policy
/// budgets  [kv_heads] before the allocation, always-kept entries included
/// returns  [kv_heads]; waits for the device where the budgets depend on scores.
///          Throws NonFinite if one is NaN
template <Storage T>
std::vector<int64_t> head_budgets(const Policy& policy, const Ranking& ranking,
                                  std::span<const int64_t> budgets, LayerScores<T>& known, Queue& queue);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
