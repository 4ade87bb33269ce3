#include "layer_budgets.hpp"

#include <algorithm>
#include <string>
#include <variant>

#include <kvbound/reference/allocation.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/session_check.hpp>

#include "policy.hpp"

namespace kvbound::sim {
namespace {

// The entries that the host always keeps. Streaming-LLM's newest ones take whatever budget there is: its sinks alone.
int64_t always_kept(const Host& host, int64_t prompt_tokens, int64_t budget) {
  const HostRules rules = rules_of(host, prompt_tokens, budget);
  const bool takes_all = std::holds_alternative<StreamingLlm>(host);
  return std::max<int64_t>(1, rules.sinks + (takes_all ? 0 : rules.recent));
}

}  // namespace

std::vector<int64_t> layer_budgets(const Policy& policy, const Budget& budget,
                                   const traces::TraceInfo& info) {
  const int64_t entries = budget.entries(info.prompt_tokens);
  const auto require = [&](int64_t of_layer) {
    try {
      kvbound::require_valid(policy, of_layer, info.prompt_tokens, info.window_queries);
    } catch (const InvalidPolicy& error) {
      throw InvalidPolicy(info.path + ": policy '" + canonical(policy) + "' at budget " + to_string(budget) +
                          ": " + error.what());
    }
  };
  require(entries);
  std::vector<int64_t> budgets(static_cast<size_t>(info.layers), entries);
  if (const auto* pyramid = std::get_if<Pyramid>(&policy.allocation)) {
    budgets =
        reference::pyramid_budgets(*pyramid, info.layers, entries,
                                   always_kept(policy.host, info.prompt_tokens, entries), info.prompt_tokens);
  }
  for (const int64_t of_layer : budgets) require(of_layer);
  return budgets;
}

}  // namespace kvbound::sim
