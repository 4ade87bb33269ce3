#include "run_options.hpp"

#include <kvbound/sim/options/policy.hpp>

namespace kvbound::sim {
namespace {

std::vector<NamedPolicy> parse_policies(const CommandLine& line, std::optional<Policy>& base) {
  std::vector<NamedPolicy> policies;
  const auto is = [](const Policy& policy) {
    return [&policy](const NamedPolicy& named) { return named.policy == policy; };
  };
  for (const std::string& text : split_list("policy", line.required("policy"))) {
    const Policy policy = parse_policy(text);
    if (std::ranges::any_of(policies, is(policy))) {
      throw UsageError(fmt::format("--policy: '{}' is given twice", text));
    }
    policies.push_back({text, policy});
  }
  if (const auto text = line.text("base")) {
    base = parse_policy(*text);
    if (std::ranges::none_of(policies, is(*base))) policies.insert(policies.begin(), {*text, *base});
  }
  return policies;
}

}  // namespace

RunChoice parse_runs(const CommandLine& line, const std::vector<std::string>& backends) {
  RunChoice choice;
  const std::vector<NamedPolicy> policies = parse_policies(line, choice.base);
  for (const Budget& budget : parse_list<Budget>(line, "budget", parse_budget)) {
    for (const NamedPolicy& policy : policies) {
      for (const std::string& backend : backends) choice.runs.push_back({policy, budget, backend});
    }
  }
  return choice;
}

}  // namespace kvbound::sim
