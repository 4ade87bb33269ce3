#include "layer_budgets.hpp"

#include <algorithm>
#include <variant>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/eviction/allocation.hpp>

namespace kvbound::sim {
namespace {

// Entries that the host keeps whatever the budget, at least one.
int64_t least_entries(const Host& host, int64_t prompt_tokens) {
  const HostRules rules = rules_of(host, prompt_tokens, 0);
  const int64_t given = rules.given ? std::ssize(rules.given->always_kept) : 0;
  return std::max<int64_t>(1, given + rules.sinks + (rules.fills_recent ? 0 : rules.recent));
}

struct LayerBudgets {
  const Host& host;
  int64_t entries, layers, prompt_tokens;

  std::vector<int64_t> equal() const { return std::vector<int64_t>(layers, entries); }
  std::vector<int64_t> operator()(const Uniform&) const { return equal(); }
  std::vector<int64_t> operator()(const AdaKv&) const { return equal(); }
  std::vector<int64_t> operator()(const Pyramid& pyramid) const {
    return reference::pyramid_budgets(pyramid, layers, entries, least_entries(host, prompt_tokens),
                                      prompt_tokens);
  }
};

}  // namespace

std::vector<int64_t> layer_budgets(const Policy& policy, int64_t entries, int64_t layers,
                                   int64_t prompt_tokens) {
  return std::visit(LayerBudgets{policy.host, entries, layers, prompt_tokens}, policy.allocation);
}

}  // namespace kvbound::sim
