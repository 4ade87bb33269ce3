#include "run_options.hpp"

#include <kvbound/sim/options/policy.hpp>

namespace kvbound::sim {

RunChoice parse_runs(const CommandLine& line, const std::vector<std::string>& backends) {
  RunChoice choice;
  const auto base = line.text("base");
  const std::vector<NamedPolicy> policies =
      named_policies(split_list("policy", line.required("policy")), base);
  if (base) choice.base = parse_policy(*base);
  choice.runs = every_run(policies, parse_list<Budget>(line, "budget", parse_budget), backends);
  return choice;
}

}  // namespace kvbound::sim
