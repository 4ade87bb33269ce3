#include "plan.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/strict_json.hpp>

namespace kvbound::sim {
namespace {

using traces::Json;

constexpr int64_t kMostPlanBytes = int64_t{64} << 20;
constexpr size_t kMostPlanItems = 10'000;  // of a list
constexpr std::array<std::string_view, 14> kPlanMembers{
    "format",          "version",          "traces", "policies", "budgets",      "base",
    "backends",        "layers",           "steps",  "recall",   "merge_bounds", "seeds",
    "layers_per_item", "policies_per_item"};

// The members of a plan, and errors that name them.
class PlanReader {
 public:
  explicit PlanReader(const std::string& path) : path_(path) {
    const traces::InputFile file(path);
    if (file.size() > kMostPlanBytes)
      throw TraceError(path, -1, "", fmt::format("has {} bytes; expected at most 64 MiB", file.size()));
    std::string text(static_cast<size_t>(file.size()), '\0');
    file.read(0, text, "");
    json_ = traces::parse_strict_json(path, 0, "", text, {.levels = 2, .items = kMostPlanItems});
    for (const auto& [name, value] : *json_.object()) {
      if (std::ranges::find(kPlanMembers, name) != kPlanMembers.end()) continue;
      throw TraceError(path, value.offset, "",
                       fmt::format("member {} is unknown; the members of a plan are {}",
                                   traces::in_quotes(name), fmt::join(kPlanMembers, ", ")));
    }
  }

  [[noreturn]] void refuse(std::string_view name, const std::string& problem, int64_t offset = -1) const {
    const Json* member = json_.member(name);
    throw TraceError(path_, offset >= 0 ? offset : member ? member->offset : 0, std::string(name), problem);
  }

  std::optional<std::string> text(std::string_view name) const {
    const Json* member = json_.member(name);
    if (!member) return std::nullopt;
    if (!member->text() || member->text()->empty()) expected(name, *member, "a string that is not empty");
    return *member->text();
  }
  std::optional<int64_t> integer(std::string_view name, int64_t least) const {
    const Json* member = json_.member(name);
    return member ? std::optional(integer_of(name, *member, least)) : std::nullopt;
  }
  bool truth(std::string_view name) const {
    const Json* member = json_.member(name);
    if (!member) return false;
    const auto* other = std::get_if<Json::Other>(&member->value);
    if (!other || (other->text != "true" && other->text != "false")) expected(name, *member, "true or false");
    return other->text == "true";
  }

  // Calls read(value) for every item of a list that has some; nothing if the plan lacks it.
  template <class Read>
  void for_each(std::string_view name, const Read& read) const {
    const Json* member = json_.member(name);
    if (!member) return;
    if (!member->array() || member->array()->empty()) expected(name, *member, "a list that is not empty");
    for (const Json& item : *member->array()) read(item);
  }
  std::vector<std::string> texts(std::string_view name) const {
    std::vector<std::string> all;
    for_each(name, [&](const Json& item) {
      if (!item.text() || item.text()->empty()) expected(name, item, "a string that is not empty");
      all.push_back(*item.text());
    });
    return all;
  }
  std::vector<int64_t> integers(std::string_view name) const {
    std::vector<int64_t> all;
    for_each(name, [&](const Json& item) { all.push_back(integer_of(name, item, 0)); });
    return all;
  }
  void require(std::string_view name) const {
    if (!json_.member(name)) refuse(name, "is missing");
  }

 private:
  [[noreturn]] void expected(std::string_view name, const Json& place, const char* what) const {
    refuse(name, fmt::format("is {}; expected {}", traces::description(place), what), place.offset);
  }
  int64_t integer_of(std::string_view name, const Json& json, int64_t least) const {
    const uint64_t* number = json.number();
    if (!number || *number > INT64_MAX || static_cast<int64_t>(*number) < least)
      expected(name, json, least == 0 ? "an integer >= 0" : "an integer >= 1");
    return static_cast<int64_t>(*number);
  }

  const std::string& path_;
  Json json_;
};

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

// Calls read(); InvalidPolicy becomes an error of that member.
template <class Read>
auto reading(const PlanReader& plan, std::string_view member, const Read& read) {
  try {
    return read();
  } catch (const InvalidPolicy& error) {
    plan.refuse(member, error.what());
  }
}

template <class Item>
void refuse_twice(const PlanReader& plan, std::string_view member, const std::vector<Item>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (std::find(items.begin(), items.begin() + static_cast<ptrdiff_t>(i), items[i]) !=
        items.begin() + static_cast<ptrdiff_t>(i))
      plan.refuse(member, fmt::format("item {} is listed twice", i));
  }
}

}  // namespace

SweepPlan read_plan(const std::string& path) {
  const PlanReader reader(path);
  for (const char* member : {"format", "version", "traces", "policies", "budgets"}) reader.require(member);
  if (reader.text("format") != "kvbound-sweep-plan") reader.refuse("format", "is not \"kvbound-sweep-plan\"");
  if (reader.integer("version", 0) != 1) reader.refuse("version", "is not 1");
  SweepPlan plan;
  plan.path = path;
  plan.traces = reader.texts("traces");
  const std::vector<int64_t> seeds = reader.integers("seeds");
  refuse_twice(reader, "seeds", seeds);
  const auto base = reader.text("base");
  if (base) plan.base = reading(reader, "base", [&] { return parse_policy(*base); });
  plan.policies = reading(reader, "policies",
                          [&] { return with_seeds(named_policies(reader.texts("policies"), base), seeds); });
  const auto is_base = [&](const NamedPolicy& named) { return named.policy == *plan.base; };
  if (plan.base && std::ranges::none_of(plan.policies, is_base))
    reader.refuse("base", "draws random numbers with a seed that is not among the seeds");
  for (size_t i = 0; i < plan.policies.size(); ++i) {
    if (std::ranges::count(plan.policies, plan.policies[i].policy, &NamedPolicy::policy) > 1)
      reader.refuse("policies", fmt::format("'{}' is listed twice, with its seed", plan.policies[i].label));
  }
  plan.budgets = reading(reader, "budgets", [&] {
    std::vector<Budget> budgets;
    for (const std::string& text : reader.texts("budgets")) budgets.push_back(parse_budget(text));
    return budgets;
  });
  refuse_twice(reader, "budgets", plan.budgets);
  plan.backends = reader.texts("backends");
  if (plan.backends.empty()) plan.backends = {std::string(kReference)};
  refuse_twice(reader, "backends", plan.backends);
  plan.layers = reader.text("layers");
  plan.steps = reader.integer("steps", 1);
  plan.recall_of = reader.integer("recall", 1).value_or(plan.recall_of);
  plan.merge_bounds = reader.truth("merge_bounds");
  plan.layers_per_item = reader.integer("layers_per_item", 1).value_or(plan.layers_per_item);
  plan.policies_per_item = reader.integer("policies_per_item", 1);
  return plan;
}

}  // namespace kvbound::sim
