#include "head_budgets.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/eviction/allocation.hpp>
#include <kvbound/reference/eviction/head_kv.hpp>
#include <kvbound/traces/head_scores.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

// Entries that the host keeps whatever the budget.
int64_t always_kept(const Host& host, int64_t prompt_tokens) {
  const HostRules rules = rules_of(host, prompt_tokens, 0);
  const int64_t given = rules.given ? std::ssize(rules.given->always_kept) : 0;
  return given + rules.sinks + (rules.fills_recent ? 0 : rules.recent);
}

// The places of the replayed layers in a file of scores.
std::vector<int64_t> places_in(const HeadScores& scores, const BudgetScope& scope) {
  const int64_t layers = std::ssize(scores.scores), heads = std::ssize(scores.scores.front());
  const bool whole_model = !scope.model_layers.empty() && layers > scope.model_layers.back();
  if (heads == scope.shape.query_heads && (layers == scope.layers || whole_model)) {
    std::vector<int64_t> places = scope.replayed;
    if (layers == scope.layers) return places;
    for (int64_t& place : places) place = scope.model_layers[place];
    return places;
  }
  throw InvalidPolicy(fmt::format("{} has scores of {} layers of {} query heads; expected {} of {}",
                                  traces::printable_path(scores.path), layers, heads, scope.layers,
                                  scope.shape.query_heads));
}

struct AllocatedBudgets {
  const Host& host;
  int64_t entries;
  const BudgetScope& scope;

  HeadBudgets equal() const {
    return HeadBudgets(scope.layers, std::vector<int64_t>(scope.shape.kv_heads, entries));
  }
  HeadBudgets operator()(const Uniform&) const { return equal(); }
  HeadBudgets operator()(const AdaKv&) const { return equal(); }
  HeadBudgets operator()(const Pyramid& pyramid) const {
    const int64_t least = std::max<int64_t>(1, always_kept(host, scope.prompt_tokens));
    HeadBudgets budgets;
    for (const int64_t layer :
         reference::pyramid_budgets(pyramid, scope.layers, entries, least, scope.prompt_tokens))
      budgets.emplace_back(scope.shape.kv_heads, layer);
    return budgets;
  }
  HeadBudgets operator()(const HeadKv& options) const {
    const std::vector<int64_t> shared = reference::head_kv_budgets(
        {entries, always_kept(host, scope.prompt_tokens), scope.prompt_tokens, options.beta},
        reference::head_importances(*options.read, places_in(*options.read, scope), scope.shape.kv_heads,
                                    options.temperature));
    HeadBudgets budgets = equal();
    auto next = shared.begin();
    for (const int64_t layer : scope.replayed) {
      std::copy_n(next, scope.shape.kv_heads, budgets[layer].begin());
      next += scope.shape.kv_heads;
    }
    return budgets;
  }
};

}  // namespace

BudgetScope budget_scope(const traces::TraceInfo& trace, std::vector<int64_t> replayed) {
  return {trace.shape,         trace.layers,         std::move(replayed),
          trace.prompt_tokens, trace.window_queries, trace.model_layers};
}

HeadBudgets head_budgets(const Policy& policy, int64_t entries, const BudgetScope& scope) {
  return std::visit(AllocatedBudgets{policy.host, entries, scope}, policy.allocation);
}

const HeadScores* head_scores(const Policy& policy) {
  const auto* const allocation = std::get_if<HeadKv>(&policy.allocation);
  return allocation ? allocation->read.get() : nullptr;
}

Policy with_head_scores(Policy policy) {
  if (auto* const allocation = std::get_if<HeadKv>(&policy.allocation))
    allocation->read = traces::read_head_scores(allocation->scores);
  return policy;
}

double mean_entries(const std::vector<int64_t>& budgets) {
  const int64_t sum = std::accumulate(budgets.begin(), budgets.end(), int64_t{0});
  return static_cast<double>(sum) / static_cast<double>(budgets.size());
}

}  // namespace kvbound::sim
