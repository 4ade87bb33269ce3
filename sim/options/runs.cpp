#include "runs.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/traces/messages.hpp>

#include "head_budgets.hpp"
#include "policy.hpp"

namespace kvbound::sim {
namespace {

bool has(const std::vector<NamedPolicy>& policies, const Policy& policy) {
  return std::ranges::any_of(policies, [&](const NamedPolicy& named) { return named.policy == policy; });
}

}  // namespace

std::vector<NamedPolicy> named_policies(const std::vector<std::string>& texts,
                                        const std::optional<std::string>& base) {
  std::vector<NamedPolicy> policies;
  for (const std::string& text : texts) {
    const Policy policy = parse_policy(text);
    if (has(policies, policy))
      throw InvalidPolicy(fmt::format("policy {} is given twice", traces::quoted(text)));
    policies.push_back({text, with_head_scores(policy)});
  }
  if (base) {
    const Policy policy = parse_policy(*base);
    if (!has(policies, policy)) policies.insert(policies.begin(), {*base, with_head_scores(policy)});
  }
  return policies;
}

std::vector<Run> every_run(const std::vector<NamedPolicy>& policies, const std::vector<Budget>& budgets,
                           const std::vector<std::string>& backends) {
  std::vector<Run> runs;
  for (const Budget& budget : budgets) {
    for (const NamedPolicy& policy : policies) {
      for (const std::string& backend : backends) runs.push_back({policy, budget, backend});
    }
  }
  return runs;
}

std::vector<std::string> named_files(const std::vector<Run>& runs) {
  std::vector<std::string> paths;
  for (const Run& run : runs) {
    if (const std::string* const file = given_file(run.policy.policy.host)) paths.push_back(*file);
    if (const HeadScores* const scores = head_scores(run.policy.policy)) paths.push_back(scores->path);
  }
  return paths;
}

}  // namespace kvbound::sim
