// The entries that are kept at the prompt's end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>

#include "ranking.hpp"

namespace kvbound::reference {

/// Selects the kept entries of a ranked prompt.
///
/// policy   its host ranks entries
/// budgets  [kv_heads]: number of entries kept, always-kept entries included
/// known    the layer's cached scores
/// times    adds up the operations' wall times; null: not measured
/// returns  the kept positions, and the scores, stage one, stage-two scores and norms on
///          which the selection is based
PromptRecord select_prompt(const LayerView& layer, const Policy& policy, const Ranking& ranking,
                           std::span<const int64_t> budgets, LayerScores& known, OperationTimes* times);

/// The number of candidates that each KV head keeps, [kv_heads]: its budget minus the always-kept entries.
std::vector<int64_t> candidates_kept(const Ranking& ranking, std::span<const int64_t> budgets);

}  // namespace kvbound::reference
