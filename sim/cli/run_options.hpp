// The options by which commands choose runs: policies at budgets.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/runs.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {

/// The items of a mandatory option's list. Throws UsageError if two are equal.
///
/// parse  called with an item's text
template <class Item, class Parse>
std::vector<Item> parse_list(const CommandLine& line, const char* option, const Parse& parse) {
  std::vector<Item> items;
  for (const std::string& text : split_list(option, line.required(option))) {
    const Item item = parse(text);
    if (std::ranges::find(items, item) != items.end()) {
      throw UsageError(fmt::format("--{}: {} is given twice", option, traces::quoted(text)));
    }
    items.push_back(item);
  }
  return items;
}

/// --policy, --budget and --base: each policy at each budget on each backend, budget by budget. A base that
/// is not among the policies comes first.
struct RunChoice {
  std::vector<Run> runs;
  std::optional<Policy> base;
};
/// Throws UsageError, and InvalidPolicy for ill-formed policies and budgets.
RunChoice parse_runs(const CommandLine& line, const std::vector<std::string>& backends);

}  // namespace kvbound::sim
