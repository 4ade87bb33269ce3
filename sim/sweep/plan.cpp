#include "plan.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/backend.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/json_field.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

using traces::JsonField;

constexpr int64_t kMostPlanBytes = int64_t{64} << 20;
constexpr size_t kMostPlanItems = 10'000;  // of a list
constexpr std::array<std::string_view, 16> kPlanMembers{
    "format",          "version",          "traces", "policies", "budgets",      "base",          "backends",
    "heads",           "layers",           "steps",  "recall",   "merge_bounds", "centred_bound", "seeds",
    "layers_per_item", "policies_per_item"};

// The items of a list that has some.
std::vector<std::string> texts(const JsonField& list) {
  std::vector<std::string> all;
  for (const JsonField& item : list.items()) all.push_back(item.text());
  return all;
}

std::optional<std::string> text(const JsonField& plan, const char* name) {
  const auto field = plan.find(name);
  return field ? std::optional(field->text()) : std::nullopt;
}

std::optional<int64_t> at_least_one(const JsonField& plan, const char* name) {
  const auto field = plan.find(name);
  return field ? std::optional(field->integer(1)) : std::nullopt;
}

bool is_true(const JsonField& plan, const char* name) {
  const auto field = plan.find(name);
  return field && field->boolean();
}

// Policies that draw random numbers, once for every seed.
std::vector<NamedPolicy> with_seeds(const std::vector<NamedPolicy>& policies,
                                    const std::vector<int64_t>& seeds) {
  std::vector<NamedPolicy> all;
  for (const NamedPolicy& named : policies) {
    if (seeds.empty() || !with_seed(named.policy, 0)) {
      all.push_back(named);
      continue;
    }
    for (const int64_t seed : seeds) {
      const Policy seeded = *with_seed(named.policy, seed);
      all.push_back({canonical(seeded), seeded});
    }
  }
  return all;
}

// Throws TraceError if there would be more than kMostRuns.
void require_runs(const JsonField& plan, std::initializer_list<size_t> factors) {
  int64_t runs = 1;
  for (const size_t factor : factors) {
    runs *= static_cast<int64_t>(factor);  // each at most kMostRuns, or the items of a list
    if (runs > kMostRuns) plan.refuse(fmt::format("makes more than {} runs", kMostRuns));
  }
}

// Calls read(); InvalidPolicy becomes an error of the field.
template <class Read>
auto reading(const JsonField& field, const Read& read) {
  try {
    return read();
  } catch (const InvalidPolicy& error) {
    field.refuse(error.what());
  }
}

template <class Item>
void refuse_twice(const JsonField& list, const std::vector<Item>& items) {
  for (auto item = items.begin(); item != items.end(); ++item) {
    if (std::find(items.begin(), item, *item) != item)
      list.refuse(fmt::format("item {} is listed twice", item - items.begin()));
  }
}

std::vector<int64_t> seeds_of(const JsonField& plan) {
  std::vector<int64_t> seeds;
  const auto list = plan.find("seeds");
  if (!list) return seeds;
  for (const JsonField& item : list->items()) seeds.push_back(item.integer());
  refuse_twice(*list, seeds);
  return seeds;
}

std::vector<Budget> budgets_of(const JsonField& list) {
  std::vector<Budget> budgets;
  for (const JsonField& item : list.items())
    budgets.push_back(reading(item, [&] { return parse_budget(item.text()); }));
  refuse_twice(list, budgets);
  return budgets;
}

}  // namespace

SweepPlan read_plan(const std::string& path) {
  const traces::Json json = traces::parse_strict_json(path, 0, "", traces::whole_input(path, kMostPlanBytes),
                                                      {.levels = 2, .items = kMostPlanItems});
  const JsonField root(path, "", json);
  root.require_known(kPlanMembers, "a plan");
  root.member("format").one_of({"kvbound-sweep-plan"});
  root.member("version").integer(1, 1);
  SweepPlan plan;
  plan.path = path;
  plan.traces = texts(root.member("traces"));
  const std::vector<int64_t> seeds = seeds_of(root);
  const auto base = text(root, "base");
  if (base) plan.base = reading(root.member("base"), [&] { return parse_policy(*base); });
  const JsonField policies = root.member("policies");
  const std::vector<NamedPolicy> unseeded =
      reading(policies, [&] { return named_policies(texts(policies), base); });
  require_runs(root, {unseeded.size(), std::max<size_t>(1, seeds.size())});
  plan.policies = with_seeds(unseeded, seeds);
  const auto is_base = [&](const NamedPolicy& named) { return named.policy == *plan.base; };
  if (plan.base && std::ranges::none_of(plan.policies, is_base))
    root.member("base").refuse("draws random numbers with a seed that is not among the seeds");
  std::set<std::string> known;
  for (const NamedPolicy& one : plan.policies) {
    if (!known.insert(canonical(one.policy)).second)
      policies.refuse(fmt::format("{} is listed twice, with its seed", traces::quoted(one.label)));
  }
  plan.budgets = budgets_of(root.member("budgets"));
  const auto backends = root.find("backends");
  plan.backends = backends ? texts(*backends) : std::vector{std::string(kReference)};
  if (backends) {
    for (const JsonField& item : backends->items()) {
      if (!is_backend(item.text())) item.expected("reference, emulated or cuda");
    }
    refuse_twice(*backends, plan.backends);
  }
  require_runs(root, {plan.policies.size(), plan.budgets.size(), plan.backends.size()});
  if (const auto heads = root.find("heads")) {
    heads->one_of({"kv", "query"});
    plan.heads = *traces::cache_heads(heads->text());
  }
  plan.layers = text(root, "layers");
  plan.steps = at_least_one(root, "steps");
  plan.recall_of = at_least_one(root, "recall").value_or(plan.recall_of);
  plan.merge_bounds = is_true(root, "merge_bounds");
  plan.centred_bound = is_true(root, "centred_bound");
  plan.layers_per_item = at_least_one(root, "layers_per_item").value_or(plan.layers_per_item);
  plan.policies_per_item = at_least_one(root, "policies_per_item");
  return plan;
}

}  // namespace kvbound::sim
