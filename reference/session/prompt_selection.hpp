// The entries that are kept at the prompt's end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>

#include "ranking.hpp"

namespace kvbound::reference {

/// Chooses by the policy's selection who of a ranking stays.
///
/// policy   its host is not streaming-llm
/// budgets  [kv_heads]: entries kept, those that the host always keeps included
/// known    of this layer
/// times    where the operations' times go; null: nowhere
/// returns  kept, and the grounds: scores, stage one, stage-two scores, norms
PromptRecord select_prompt(const LayerView& layer, const Policy& policy, const Ranking& ranking,
                           std::span<const int64_t> budgets, LayerScores& known, OperationTimes* times);

/// How many candidates each KV head keeps.
std::vector<int64_t> candidates_kept(const Ranking& ranking, std::span<const int64_t> budgets);

}  // namespace kvbound::reference
