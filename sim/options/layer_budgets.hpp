// The budget of each layer of a trace.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/policy.hpp>

namespace kvbound::sim {

/// Entries per KV head that a policy keeps in each layer: `entries` in every layer, or,
/// with `pyramid`, on average.
///
/// entries        the user's budget
/// layers         of the whole trace, even if only some are replayed
/// prompt_tokens  >= entries
/// returns        [layers]; their sum is layers * entries
/// throws         ShapeMismatch, InvalidPolicy: reference::pyramid_budgets
std::vector<int64_t> layer_budgets(const Policy& policy, int64_t entries, int64_t layers,
                                   int64_t prompt_tokens);

}  // namespace kvbound::sim
