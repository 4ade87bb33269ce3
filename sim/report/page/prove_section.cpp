#include "prove_section.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

// A property as the document says.
struct Tried {
  std::string id, verdict, claim;
  double cases = kUndefined, tightest = kUndefined;
};

// None of a run of stored instances alone.
std::vector<Tried> properties(const ReadPart& part) {
  if (!part.find("properties")) return {};
  const Cube& cube = part.cube("properties", {"property"});
  const std::vector<std::string>& ids = texts_of(part, *cube.axes[0], "property");
  const std::vector<std::string>&verdicts = column_texts(part, cube, "verdict"),
        &claims = column_texts(part, cube, "claim");
  const std::vector<double> cases = numbers_or_none(cube, "cases"),
                            tightest = numbers_or_none(cube, "tightest");
  std::vector<Tried> all;
  for (size_t i = 0; i < ids.size(); ++i)
    all.push_back({ids[i], verdicts[i], claims[i], cases[i], tightest[i]});
  return all;
}

// What was found of a property.
struct Finding {
  const char* verdict;  // as the document says
  const char* says;
  enum Kind { failed, inconclusive, holds, refuted } kind;  // in the order in which the page shows them
};

constexpr Finding kFindings[] = {
    {"violated", "fails", Finding::failed},
    {"no-counterexample-found-where-one-must-exist", "fails: no counterexample found, where one must exist",
     Finding::failed},
    {"regimes-too-rare", "inconclusive: regimes too rare", Finding::inconclusive},
    {"undecided", "inconclusive: an instance could not be evaluated", Finding::inconclusive},
    {"no-counterexample", "no counterexample", Finding::holds},
    {"counterexample-found", "refuted, as it must be", Finding::refuted}};

const Finding& finding(const Tried& property) {
  return *std::ranges::find(kFindings, property.verdict, &Finding::verdict);
}

void require_verdicts(const ReadPart& part, const std::vector<Tried>& properties) {
  for (const Tried& property : properties) {
    if (std::ranges::find(kFindings, property.verdict, &Finding::verdict) == std::end(kFindings))
      part.cubes_field.refuse(fmt::format("have a verdict {} of {}; expected one of kvbound prove",
                                          traces::quoted(property.verdict), traces::quoted(property.id)));
  }
}

std::vector<Tried> of_kind(const std::vector<Tried>& properties, Finding::Kind kind) {
  std::vector<Tried> some;
  std::ranges::copy_if(properties, std::back_inserter(some),
                       [&](const Tried& property) { return finding(property).kind == kind; });
  return some;
}

// What was found of searches for tight instances and of stored instances.
struct Rerun {
  std::vector<std::string> failed, undecided;  // ids
  int64_t stored = 0;                          // instances
};

Rerun rerun_of(const ReadPart& part) {
  Rerun rerun;
  if (part.find("searches")) {
    const Cube& searches = part.cube("searches", {"search"});
    const std::vector<std::string>& ids = texts_of(part, *searches.axes[0], "property");
    for (size_t i = 0; searches.find("failure") && i < ids.size(); ++i) {
      if (!column_texts(part, searches, "failure")[i].empty()) rerun.failed.push_back(ids[i]);
    }
  }
  if (!part.find("replayed")) return rerun;
  const Cube& replayed = part.cube("replayed", {"instance"});
  const std::vector<std::string>&ids = texts_of(part, *replayed.axes[0], "property"),
        &outcomes = column_texts(part, replayed, "outcome");
  rerun.stored = std::ssize(ids);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (outcomes[i] == "undecided") rerun.undecided.push_back(ids[i]);
    if (outcomes[i] == "wrong") rerun.failed.push_back(ids[i]);
  }
  return rerun;
}

// The ids of some kind, and more.
std::vector<std::string> ids(const std::vector<Tried>& properties, Finding::Kind kind,
                             const std::vector<std::string>& more) {
  std::vector<std::string> all;
  for (const Tried& property : of_kind(properties, kind)) all.push_back(property.id);
  std::ranges::copy_if(more, std::back_inserter(all),
                       [&](const std::string& id) { return std::ranges::find(all, id) == all.end(); });
  return all;
}

// What fails, by name; what is inconclusive, by name; how many theorems, claims and
// instances are as they must be.
std::string verdict_line(const std::vector<Tried>& all, const Rerun& rerun) {
  const std::vector<std::string> failed = ids(all, Finding::failed, rerun.failed),
                                 inconclusive = ids(all, Finding::inconclusive, rerun.undecided);
  std::string line = failed.empty() ? "nothing fails." : fmt::format("{} fails.", fmt::join(failed, ", "));
  if (!inconclusive.empty()) line += fmt::format(" Inconclusive: {}.", fmt::join(inconclusive, ", "));
  if (!all.empty()) {
    line += fmt::format(
        " To {} theorems no counterexample was found; {} claims without one of their hypotheses are "
        "refuted, as they must be.",
        of_kind(all, Finding::holds).size(), of_kind(all, Finding::refuted).size());
  }
  if (rerun.stored > 0) line += fmt::format(" {} stored instances were run again.", rerun.stored);
  return line;
}

// Every property with its verdict, those that fail first.
Json verdict_table(const std::vector<Tried>& all) {
  Json rows = Json::array();
  for (const auto kind : {Finding::failed, Finding::inconclusive, Finding::holds, Finding::refuted}) {
    for (const Tried& property : of_kind(all, kind)) {
      const auto number = [](double value, const char* format) {
        return std::isnan(value) ? "-" : fmt::format(fmt::runtime(format), value);
      };
      rows.push_back({{{"text", property.id}},
                      {{"text", finding(property).says}, {"wrong", kind == Finding::failed}},
                      {{"text", number(property.cases, "{:.0f}")}},
                      {{"text", number(property.tightest, "{:.4g}")}},
                      {{"text", property.claim}}});
    }
  }
  return {{"headings", {"property", "verdict", "cases", "largest ratio", "claim"}}, {"rows", rows}};
}

PageCube over_properties(const std::vector<Tried>& properties) {
  Json keys{{"property", Json::array()}, {"verdict", Json::array()}};
  for (const Tried& property : properties) {
    keys["property"].push_back(property.id);
    keys["verdict"].push_back(property.verdict);
  }
  PageCube cube;
  cube.add_axis(std::move(keys));
  return cube;
}

PageCube properties_cube(const std::vector<Tried>& properties) {
  PageCube cube = over_properties(properties);
  for (const Tried& property : properties) {
    cube.append("cases", property.cases);
    cube.append("tightest", property.tightest);
  }
  return cube;
}

// The share of the cases that each regime had in each property.
PageCube regimes_cube(const ReadPart& part, const std::vector<Tried>& properties) {
  const Cube& regimes = part.cube("regimes", {"property", "regime"});
  PageCube cube = over_properties(properties);
  cube.add_axis({{"regime", texts_of(part, *regimes.axes[1], "regime")}});
  cube.append("share", numbers_or_none(regimes, "share"));
  return cube;
}

void add_figures(Section& section, const ReadPart& part, const std::vector<Tried>& all) {
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
      section.add(regimes_cube(part, all)),
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
  const ReadPart part = only_part(document);
  const std::vector<Tried> all = properties(part);
  require_verdicts(part, all);
  Section section(id, "Theorems");
  section.headline = verdict_line(all, rerun_of(part));
  if (!all.empty()) section.table = verdict_table(all);
  std::vector<Fact> facts;
  if (const auto seed = document.root().member("provenance").optional_member("seed"))
    facts.emplace_back("seed", std::to_string(seed->integer()));
  if (all.empty()) return {{std::move(section)}, {}, std::move(facts)};
  add_figures(section, part, all);
  return {{std::move(section)}, {}, std::move(facts)};
}

}  // namespace kvbound::sim
