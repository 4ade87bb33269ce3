#include "prove_section.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

std::vector<JsonField> properties(const JsonField& root) {
  std::vector<JsonField> all;
  for (const JsonField& theorem : root.member("theorems").items(true)) {
    for (const JsonField& property : theorem.member("properties").items()) all.push_back(property);
  }
  return all;
}

bool passes(const JsonField& property) {
  const std::string verdict = property.member("verdict").text();
  return verdict == "no-counterexample" || verdict == "counterexample-found";
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
  section.lines.push_back(fmt::format(
      "{} of {} properties are as they must be: no counterexample to a theorem, and one to every claim "
      "that drops a hypothesis.",
      std::ranges::count_if(all, passes), all.size()));
  for (const JsonField& property : all) {
    if (passes(property)) continue;
    section.lines.push_back(fmt::format("{}: {}, after {} cases. {}", property.member("id").text(),
                                        property.member("verdict").text(), property.member("cases").integer(),
                                        property.member("claim").text()));
  }
  std::vector<Fact> facts;
  if (const auto seed = root.optional_member("seed"))
    facts.emplace_back("seed", std::to_string(seed->integer()));
  if (all.empty()) return {{std::move(section)}, {}, std::move(facts)};
  add_figures(section, all);
  return {{std::move(section)}, {}, std::move(facts)};
}

}  // namespace kvbound::sim
