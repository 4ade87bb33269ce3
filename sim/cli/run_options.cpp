#include "run_options.hpp"

#include <fmt/ranges.h>

#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/report/report.hpp>
#include <kvbound/traces/messages.hpp>

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

void add_columns_option(CommandLine& line) {
  const std::string columns = fmt::format("columns of the table besides policy and budget (default: all): {}",
                                          fmt::join(column_names(), ", "));
  line.add("columns", "C[,C]", columns.c_str());
}

std::vector<std::string> chosen_columns(const CommandLine& line) {
  const std::vector<std::string> known = column_names();
  if (!line.has("columns")) return known;
  return parse_list<std::string>(line, "columns", [&](const std::string& name) {
    if (std::ranges::find(known, name) == known.end()) {
      throw UsageError(fmt::format("--columns: no column {}; known columns: {}", traces::quoted(name),
                                   fmt::join(known, ", ")));
    }
    return name;
  });
}

}  // namespace kvbound::sim
