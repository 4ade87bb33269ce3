#include "chosen_columns.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/options/suggestion.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

std::vector<std::string> names_of(std::span<const Figure> figures) {
  std::vector<std::string> names;
  for (const Figure& figure : figures) {
    if (std::ranges::find(names, figure.name) == names.end()) names.push_back(figure.name);
  }
  return names;
}

}  // namespace

void add_columns_option(CommandLine& line, std::span<const Figure> known) {
  const std::string meaning =
      fmt::format("columns of the table, by names or headings, or all: {}", fmt::join(names_of(known), ", "));
  line.add("columns", "C[,C]", meaning.c_str());
}

std::vector<std::string> chosen_columns(const CommandLine& line, std::span<const Figure> known) {
  std::vector<std::string> chosen;
  if (!line.has("columns")) return chosen;
  for (const std::string& text : split_list("columns", line.required("columns"))) {
    if (text == "all") return names_of(known);
    const auto figure = std::ranges::find_if(known, [&](const Figure& one) { return is_named(one, text); });
    if (figure == known.end()) {
      throw UsageError(fmt::format("--columns: no column {}; {}", traces::quoted(text),
                                   suggestion(text, "known columns: ", names_of(known))));
    }
    if (std::ranges::find(chosen, figure->name) != chosen.end())
      throw UsageError(fmt::format("--columns: {} is given twice", traces::quoted(text)));
    chosen.push_back(figure->name);
  }
  return chosen;
}

}  // namespace kvbound::sim
