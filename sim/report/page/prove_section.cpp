#include "prove_section.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvbound::sim {
namespace {

std::vector<JsonField> properties(const JsonField& root) {
  std::vector<JsonField> all;
  for (const JsonField& theorem : root.member("theorems").items(true)) {
    for (const JsonField& property : theorem.member("properties").items()) all.push_back(property);
  }
  return all;
}

// What was found of a property.
struct Finding {
  const char* verdict;  // as the document says
  const char* says;
  enum Kind { failed, inconclusive, holds, refuted } kind;  // in the order in which the page shows them
};

const Finding& finding(const JsonField& property) {
  static constexpr Finding kFindings[] = {
      {"violated", "fails", Finding::failed},
      {"no-counterexample-found-where-one-must-exist", "fails: no counterexample found, where one must exist",
       Finding::failed},
      {"regimes-too-rare", "inconclusive: regimes too rare", Finding::inconclusive},
      {"undecided", "inconclusive: an instance could not be evaluated", Finding::inconclusive},
      {"no-counterexample", "no counterexample", Finding::holds},
      {"counterexample-found", "refuted, as it must be", Finding::refuted}};
  const std::string verdict = property.member("verdict").text();
  const auto found = std::ranges::find(kFindings, verdict, &Finding::verdict);
  if (found == std::end(kFindings))
    property.member("verdict").refuse(fmt::format("is \"{}\"; expected a verdict of kvbound prove", verdict));
  return *found;
}

std::vector<JsonField> of_kind(const std::vector<JsonField>& properties, Finding::Kind kind) {
  std::vector<JsonField> some;
  std::ranges::copy_if(properties, std::back_inserter(some),
                       [&](const JsonField& property) { return finding(property).kind == kind; });
  return some;
}

std::string ids(const std::vector<JsonField>& properties) {
  std::vector<std::string> all;
  for (const JsonField& property : properties) all.push_back(property.member("id").text());
  return fmt::format("{}", fmt::join(all, ", "));
}

// What fails, by name; what is inconclusive, by name; how many theorems and claims are as they must be.
std::string verdict_line(const std::vector<JsonField>& all) {
  const auto failed = of_kind(all, Finding::failed), inconclusive = of_kind(all, Finding::inconclusive);
  std::string line = failed.empty() ? "nothing fails. " : fmt::format("{} fails. ", ids(failed));
  if (!inconclusive.empty()) line += fmt::format("Inconclusive: {}. ", ids(inconclusive));
  return line +
         fmt::format(
             "To {} theorems no counterexample was found; {} claims without one of their hypotheses are "
             "refuted, as they must be.",
             of_kind(all, Finding::holds).size(), of_kind(all, Finding::refuted).size());
}

// Every property with its verdict, those that fail first.
Json verdict_table(const std::vector<JsonField>& all) {
  Json rows = Json::array();
  for (const auto kind : {Finding::failed, Finding::inconclusive, Finding::holds, Finding::refuted}) {
    for (const JsonField& property : of_kind(all, kind)) {
      const double tightest = property.member("tightest").number_or_nan();
      rows.push_back({{{"text", property.member("id").text()}},
                      {{"text", finding(property).says}, {"wrong", kind == Finding::failed}},
                      {{"text", std::to_string(property.member("cases").integer())}},
                      {{"text", std::isnan(tightest) ? "-" : fmt::format("{:.4g}", tightest)}},
                      {{"text", property.member("claim").text()}}});
    }
  }
  return {{"headings", {"property", "verdict", "cases", "largest ratio", "claim"}}, {"rows", rows}};
}

Json property_keys(const std::vector<JsonField>& properties) {
  Json keys{{"property", Json::array()}, {"verdict", Json::array()}};
  for (const JsonField& property : properties) {
    keys["property"].push_back(property.member("id").text());
    keys["verdict"].push_back(property.member("verdict").text());
  }
  return keys;
}

PageCube properties_cube(const std::vector<JsonField>& properties) {
  PageCube cube;
  cube.add_axis(property_keys(properties));
  for (const JsonField& property : properties) {
    cube.append("cases", static_cast<double>(property.member("cases").integer()));
    cube.append("tightest", property.member("tightest").number_or_nan());
  }
  return cube;
}

// The share of the cases that each regime had in each property.
PageCube regimes_cube(const std::vector<JsonField>& properties) {
  Json names = Json::array();
  std::vector<std::map<std::string, double>> shares;
  for (const JsonField& property : properties) {
    shares.emplace_back();
    for (const JsonField& regime : property.member("regimes").items(true)) {
      const std::string name = regime.member("regime").text();
      if (std::find(names.begin(), names.end(), Json(name)) == names.end()) names.push_back(name);
      require_room(regime, {std::ssize(properties), std::ssize(names)});
      shares.back()[name] = regime.member("share").number();
    }
  }
  PageCube cube;
  cube.add_axis(property_keys(properties));
  for (const auto& of_property : shares) {
    for (const Json& name : names) {
      const auto found = of_property.find(name.get<std::string>());
      cube.append("share", found == of_property.end() ? kUndefined : found->second);
    }
  }
  cube.add_axis({{"regime", std::move(names)}});
  return cube;
}

void add_figures(Section& section, const std::vector<JsonField>& all) {
  const std::string cube = section.add(properties_cube(all));
  section.add(
      cube,
      {.kind = "dots",
       .title = "Tightness",
       .how =
           "The largest ratio of a claim's two sides that was found. A theorem's stays at or below 1; a claim without one of "
           "its hypotheses goes beyond.",
       .x = {"tightest", "largest ratio of both sides", true},
       .y = {"", "property"},
       .series = "verdict",
       .more = {{"labels", {"property"}}, {"limit", {{"at", 1}, {"name", "the bound"}}}}});
  section.add(cube, {.kind = "dots",
                     .title = "Cases",
                     .how = "Instances tried, up to the first counterexample.",
                     .x = {"cases", "instances", true},
                     .y = {"", "property"},
                     .series = "verdict",
                     .more = {{"labels", {"property"}}}});
  section.add(
      section.add(regimes_cube(all)),
      {.kind = "heatmap",
       .title = "Regimes",
       .how =
           "The share of a property's cases that were an example of each regime: where a bound is tight or a formula loses "
           "its digits.",
       .x = {"regime", "regime"},
       .y = {"property", "property"},
       .more = {{"value", {{"value", "share"}, {"label", "share of the cases"}}}, {"scale", "sequential"}}});
}

}  // namespace

Contribution prove_contribution(const Document& document, const std::string& id) {
  const JsonField root = document.root();
  const std::vector<JsonField> all = properties(root);
  Section section(id, "Theorems");
  section.headline = verdict_line(all);
  section.table = verdict_table(all);
  std::vector<Fact> facts;
  if (const auto seed = root.optional_member("seed"))
    facts.emplace_back("seed", std::to_string(seed->integer()));
  if (all.empty()) return {{std::move(section)}, {}, std::move(facts)};
  add_figures(section, all);
  return {{std::move(section)}, {}, std::move(facts)};
}

}  // namespace kvbound::sim
