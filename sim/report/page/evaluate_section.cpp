#include "evaluate_section.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

std::string kind_of(const JsonField& item) {
  return item.member("kind").text() + (item.member("answers").boolean() ? ", answers" : "");
}

// Keys of the runs, in their order; with those of the full cache at the end, if asked for.
Json run_keys(const JsonField& root, bool full_cache) {
  Json keys{{"policy", Json::array()}, {"canonical", Json::array()}, {"budget", Json::array()}};
  for (const JsonField& run : root.member("runs").items()) {
    keys["policy"].push_back(brief(run.member("policy").text()));
    keys["canonical"].push_back(run.member("policy").text());
    keys["budget"].push_back(run.member("budget").text());
  }
  if (full_cache) {
    keys["policy"].push_back("full cache");
    keys["canonical"].push_back("full cache");
    keys["budget"].push_back("100%");
  }
  return keys;
}

// A number and its interval, in columns `name`, `name from` and `name to`: without an interval, the number itself.
void append_interval(PageCube& cube, const std::string& name, double mean,
                     const std::optional<JsonField>& interval) {
  cube.append(name, mean);
  cube.append(name + " from", interval ? interval->member("low").number() : mean);
  cube.append(name + " to", interval ? interval->member("high").number() : mean);
}

void append_estimate(PageCube& cube, const std::string& name, const JsonField* summary, const char* member) {
  const auto estimate = summary ? summary->optional_member(member) : std::nullopt;
  append_interval(cube, name, estimate ? estimate->member("mean").number() : kUndefined,
                  estimate ? estimate->optional_member("interval") : std::nullopt);
}

// Outcomes of each kind of task and run.
PageCube outcomes_cube(const JsonField& root) {
  Json kinds{{"kind", Json::array()}};
  for (const JsonField& kind : root.member("kinds").items()) kinds["kind"].push_back(kind_of(kind));
  const Json runs = run_keys(root, false);
  const auto run_count = std::ssize(runs["policy"]);
  std::map<std::pair<std::string, int64_t>, JsonField> summaries;
  for (const JsonField& summary : root.member("summaries").items())
    summaries.insert_or_assign({kind_of(summary), summary.member("run").integer(0, run_count - 1)}, summary);
  require_room(root.member("kinds"), {std::ssize(kinds["kind"]), run_count});
  PageCube cube;
  for (const Json& kind : kinds["kind"]) {
    for (int64_t r = 0; r < run_count; ++r) {
      const auto found = summaries.find({kind.get<std::string>(), r});
      const JsonField* summary = found == summaries.end() ? nullptr : &found->second;
      append_estimate(cube, "kl", summary, "kl");
      append_estimate(cube, "delta_nll", summary, "delta_nll");
      for (const char* name : {"perturbation", "entries", "bytes"})
        cube.append(name, summary ? summary->member(name).number_or_nan() : kUndefined);
    }
  }
  cube.add_axis(std::move(kinds));
  cube.add_axis(runs);
  return cube;
}

// Whether a task's answer was decoded whole: every token the most likely one.
double is_exact(const JsonField& decoded, const std::vector<double>& target) {
  return decoded.member("top1").numbers_or_nan(std::ssize(target)) == target ? 1 : 0;
}

// Exact answers by depth and length, of tasks that have a depth; no rows if there is none.
PageCube retrieval_cube(const JsonField& root) {
  Json tasks{{"depth", Json::array()}, {"tokens", Json::array()}};
  PageCube cube;
  for (const JsonField& task : root.member("tasks").items()) {
    const auto depth = task.optional_member("depth");
    if (!depth || !task.member("answer").boolean()) continue;
    tasks["depth"].push_back(depth->number());
    tasks["tokens"].push_back(task.member("prompt_tokens").integer(1));
    const std::vector<double> target = task.member("target").numbers_or_nan();
    for (const JsonField& run : task.member("runs").items()) cube.append("exact", is_exact(run, target));
    cube.append("exact", is_exact(task.member("full"), target));
  }
  cube.add_axis(std::move(tasks));
  cube.add_axis(run_keys(root, true));
  return cube;
}

void add_outcomes(Section& section, const std::string& cube) {
  const auto add = [&](const std::string& outcome, const char* title, const char* of, const char* good,
                       const FigureAxis& axis) {
    section.add(cube, {.kind = "lines",
                       .title = title,
                       .how = fmt::format(
                           "{}, mean over tasks; the band is the bootstrap's 95 % interval. {}", of, good),
                       .x = {"entries", "entries that a step attends to, per KV head", false, true},
                       .y = axis,
                       .series = "policy",
                       .pick = {{"kind"}},
                       .more = {{"band", {outcome + " from", outcome + " to"}}}});
  };
  add("kl", "Divergence against entries", "KL(full || compressed) of the next token's distribution in nats",
      "Lower is better.", {"kl", "KL, nats", false, true});
  add("delta_nll", "Loss of likelihood against entries", "-ln p of the given tokens less the full cache's",
      "Below 0 the compressed cache predicts better.", {"delta_nll", "ΔNLL, nats"});
}

void add_predictions(Section& section, const std::string& cube, const PageCube& numbers) {
  if (!numbers.says_something("perturbation")) return;
  const auto add = [&](const char* outcome, const char* label, bool logarithmic) {
    section.add(
        cube,
        {.kind = "scatter",
         .title = fmt::format("Does L predict {}?", label),
         .how =
             "Each point is a policy at a budget: what it does to the model's answers beside L, the perturbation of query "
             "heads along the same tokens.",
         .x = {"perturbation", "L, hidden-state units", true},
         .y = {outcome, fmt::format("{}, nats", label), logarithmic},
         .series = "policy",
         .pick = {{"kind"}},
         .more = {{"labels", {"budget"}}}});
  };
  add("kl", "KL", true);
  add("delta_nll", "ΔNLL", false);
}

// What L is correlated with, at which budget.
std::string correlated(const JsonField& correlation) {
  const auto budget = correlation.optional_member("budget");
  return fmt::format("{}, {}", correlation.member("outcome").text() == "kl" ? "KL" : "ΔNLL",
                     budget ? "budget " + budget->text() : "all budgets together");
}

// The rank correlations of L and outcomes, over the means of runs: of each kind, outcome and budget.
PageCube correlations_cube(const JsonField& root) {
  Json keys = Json::object();
  PageCube cube;
  for (const JsonField& one : root.member("correlations").items(true)) {
    if (one.member("indicator").text() != "perturbation") continue;
    keys["kind"].push_back(kind_of(one));
    keys["of"].push_back(correlated(one));
    append_interval(cube, "correlation", one.member("of_means").number_or_nan(),
                    one.optional_member("of_means_interval"));
  }
  if (!keys.empty()) cube.add_axis(std::move(keys));
  return cube;
}

void add_correlations(Section& section, const JsonField& root) {
  const PageCube cube = correlations_cube(root);
  if (!cube.says_something("correlation")) return;
  section.add(
      section.add(cube),
      {.kind = "dots",
       .title = "Rank correlation of L with what the model says",
       .how =
           "Spearman's correlation of the runs' means over tasks: 1 if L orders the policies as the outcome does, about 0 by chance; "
           "with the bootstrap's 95 % interval. With all budgets together, the budgets order them, too. "
           "Filters do not act on it.",
       .x = {"correlation", "rank correlation", false, true},
       .y = {"", "outcome"},
       .pick = {{"kind"}},
       .more = {{"labels", {"of"}},
                {"band", {"correlation from", "correlation to"}},
                {"limit", {{"at", 1}, {"name", "the same order"}}}}});
}

void add_retrieval(Section& section, const JsonField& root) {
  const PageCube cube = retrieval_cube(root);
  if (cube.rows() == 0) return;
  const std::string policy = brief(root.member("runs").items().front().member("policy").text());
  section.add(
      section.add(cube),
      {.kind = "heatmap",
       .title = "Retrieval by depth and length",
       .how =
           "Share of answers all of whose tokens are right, by where the needle is (0: at the beginning) and how long the "
           "prompt is.",
       .x = {"tokens", "prompt tokens"},
       .y = {"depth", "depth"},
       .pick = {{"policy", policy}, {"budget"}},
       .more = {{"value", {{"value", "exact"}, {"label", "exact answers"}}},
                {"scale", "sequential"},
                {"domain", {0, 1}}}});
}

}  // namespace

Contribution evaluate_contribution(const Document& document, const std::string& id) {
  const JsonField root = document.root(), model = root.member("model");
  const std::string name = model_name(model.member("name"));
  Section section(id, fmt::format("What {} says", name));
  section.lines.push_back(fmt::format("{} tasks of {}, {} cache, backend {}.",
                                      root.member("tasks").items().size(),
                                      root.member("tasks_file").member("path").text(),
                                      root.member("dtype").text(), root.member("backend").text()));
  const PageCube numbers = outcomes_cube(root);
  const std::string cube = section.add(numbers);
  add_outcomes(section, cube);
  add_predictions(section, cube, numbers);
  add_correlations(section, root);
  add_retrieval(section, root);
  std::vector<Fact> facts = origin_facts(model);
  facts.emplace_back("tasks", root.member("tasks_file").member("path").text());
  facts.emplace_back("SHA-256 of the tasks", root.member("tasks_file").member("sha256").text());
  facts.emplace_back("seed of the bootstrap", std::to_string(root.member("seed").integer()));
  const std::string origin = fmt::format("{}, backend {}", document.path, root.member("backend").text());
  return {{std::move(section)}, {{origin, name, cube, true}}, std::move(facts)};
}

}  // namespace kvbound::sim
