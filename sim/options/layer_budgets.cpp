#include "layer_budgets.hpp"

#include <algorithm>
#include <variant>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/eviction/allocation.hpp>

namespace kvbound::sim {
namespace {

// Entries that the host keeps whatever the budget, at least one. streaming-llm fills up what its sinks leave.
int64_t least_entries(const Host& host, int64_t prompt_tokens) {
  const HostRules rules = rules_of(host, prompt_tokens, 0);
  const bool fills_up = std::holds_alternative<StreamingLlm>(host);
  return std::max<int64_t>(1, rules.sinks + (fills_up ? 0 : rules.recent));
}

}  // namespace

std::vector<int64_t> layer_budgets(const Policy& policy, int64_t entries, int64_t layers,
                                   int64_t prompt_tokens) {
  const auto* pyramid = std::get_if<Pyramid>(&policy.allocation);
  if (!pyramid) return std::vector<int64_t>(static_cast<size_t>(layers), entries);
  return reference::pyramid_budgets(*pyramid, layers, entries, least_entries(policy.host, prompt_tokens),
                                    prompt_tokens);
}

}  // namespace kvbound::sim
