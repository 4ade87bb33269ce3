// What one budget means for each of a trace's layers.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/traces/trace.hpp>

#include "budget.hpp"

namespace kvbound::sim {

/// Entries per KV head for every layer of the trace, which is what they add up over, whichever of them are looked at.
///
///     uniform, adakv  the budget; adakv shares it out within the layer
///     pyramid         reference::pyramid_budgets, not below the always-kept entries
///
/// returns  [layers]
/// throws   InvalidPolicy, naming the trace, if the policy makes no sense at the budget, or at a layer's
std::vector<int64_t> layer_budgets(const Policy& policy, const Budget& budget, const traces::TraceInfo& info);

}  // namespace kvbound::sim
