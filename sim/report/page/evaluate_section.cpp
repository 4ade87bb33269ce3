#include "evaluate_section.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

const Axis& axis_of(const Cube& cube, size_t axis) { return *cube.axes[axis]; }

// What a place of an axis of kinds is called.
std::vector<std::string> kinds_of(const ReadPart& part, const Axis& axis) {
  std::vector<std::string> kinds = texts_of(part, axis, "kind");
  const std::vector<std::string>& forms = texts_of(part, axis, "form");
  for (size_t i = 0; i < kinds.size(); ++i) kinds[i] += forms[i] == "answer" ? ", answers" : "";
  return kinds;
}

// Keys of the runs; the first one is the full cache.
Json run_keys(const ReadPart& part, const Axis& runs, size_t first) {
  const std::vector<std::string>&policies = texts_of(part, runs, "policy"),
        &labels = texts_of(part, runs, "label"), &budgets = texts_of(part, runs, "budget");
  Json keys{{"policy", Json::array()}, {"canonical", Json::array()}, {"budget", Json::array()}};
  for (size_t r = first; r < policies.size(); ++r) {
    keys["policy"].push_back(r == 0 ? "full cache" : policy_name(policies[r], labels[r]));
    keys["canonical"].push_back(r == 0 ? "full cache" : policies[r]);
    keys["budget"].push_back(budgets[r]);
  }
  return keys;
}

// A column and its interval, as columns `name`, `name from` and `name to`: where there is no
// interval, the number itself.
void append_estimate(PageCube& page, const std::string& name, const Cube& cube, const std::string& column,
                     const std::vector<size_t>& rows) {
  const std::vector<double> means = numbers_or_none(cube, column),
                            lows = numbers_or_none(cube, column + "_low"),
                            highs = numbers_or_none(cube, column + "_high");
  for (const size_t row : rows) {
    page.append(name, means[row]);
    page.append(name + " from", std::isnan(lows[row]) ? means[row] : lows[row]);
    page.append(name + " to", std::isnan(highs[row]) ? means[row] : highs[row]);
  }
}

// Outcomes of each kind of task and run.
PageCube outcomes_cube(const ReadPart& part) {
  const Cube& runs = part.cube("runs", {"kind", "run"});
  std::vector<size_t> rows;  // without the full cache
  for (int64_t row = 0; row < runs.rows(); ++row) {
    if (runs.place(row, 1) > 0) rows.push_back(static_cast<size_t>(row));
  }
  PageCube page;
  page.add_axis({{"kind", kinds_of(part, axis_of(runs, 0))}});
  page.add_axis(run_keys(part, axis_of(runs, 1), 1));
  append_estimate(page, "kl", runs, "kl", rows);
  append_estimate(page, "delta_nll", runs, "delta_nll", rows);
  for (const char* name : {"perturbation", "entries", "bytes"}) {
    const std::vector<double> numbers = numbers_or_none(runs, name);
    for (const size_t row : rows) page.append(name, numbers[row]);
  }
  return page;
}

// Exact answers by depth and length, of tasks that have a depth; no rows if there is none.
PageCube retrieval_cube(const ReadPart& part) {
  const Cube& answers = part.cube("task_runs", {"task", "run"});
  const Axis& tasks = axis_of(answers, 0);
  const std::vector<double> exact = numbers_or_none(answers, "exact"),
                            tokens = numbers_or_none(part.cube("tasks", {"task"}), "prompt_tokens");
  const std::vector<std::string>& forms = texts_of(part, tasks, "form");
  const bool have_depths =
      std::ranges::any_of(tasks.keys, [](const Column& key) { return key.figure.name == "depth"; });
  Json keys{{"depth", Json::array()}, {"tokens", Json::array()}};
  PageCube page;
  for (size_t t = 0; have_depths && t < forms.size(); ++t) {
    const double depth = numbers_of(part, tasks, "depth")[t];
    if (std::isnan(depth) || forms[t] != "answer" || !(tokens[t] < kMostNumbers)) continue;
    keys["depth"].push_back(depth);
    keys["tokens"].push_back(static_cast<int64_t>(tokens[t]));
    const size_t runs = static_cast<size_t>(axis_of(answers, 1).size());
    page.append("exact", std::span(exact).subspan(t * runs, runs));
  }
  page.add_axis(std::move(keys));
  page.add_axis(run_keys(part, axis_of(answers, 1), 0));
  return page;
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

// The rank correlations of L and outcomes, over the means of runs: of each kind, outcome and budget.
PageCube correlations_cube(const ReadPart& part) {
  const Cube& cube = part.cube("correlations", {"kind", "outcome", "indicator", "budget"});
  const std::vector<std::string> kinds = kinds_of(part, axis_of(cube, 0));
  const auto text = [&](size_t axis, const char* key, int64_t row) {
    return texts_of(part, axis_of(cube, axis), key)[static_cast<size_t>(cube.place(row, axis))];
  };
  std::vector<size_t> rows;
  Json keys{{"kind", Json::array()}, {"of", Json::array()}};
  for (int64_t row = 0; row < cube.rows(); ++row) {
    if (text(2, "indicator", row) != "perturbation") continue;
    rows.push_back(static_cast<size_t>(row));
    const std::string budget = text(3, "budget", row);
    keys["kind"].push_back(kinds[static_cast<size_t>(cube.place(row, 0))]);
    keys["of"].push_back(fmt::format("{}, {}", text(1, "outcome", row) == "kl" ? "KL" : "ΔNLL",
                                     budget == "all" ? "all budgets together" : "budget " + budget));
  }
  PageCube page;
  page.add_axis(std::move(keys));
  append_estimate(page, "correlation", cube, "of_means", rows);
  return page;
}

void add_correlations(Section& section, const ReadPart& part) {
  if (!part.find("correlations")) return;
  const PageCube cube = correlations_cube(part);
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

void add_retrieval(Section& section, const ReadPart& part) {
  const PageCube cube = retrieval_cube(part);
  if (!cube.says_something("exact")) return;
  const Axis& runs = axis_of(part.cube("runs"), 1);
  const size_t first = runs.size() > 1 ? 1 : 0;  // 0: the full cache
  const std::string policy = policy_name(texts_of(part, runs, "policy")[first],
                                         texts_of(part, runs, "label")[first]),
                    budget = texts_of(part, runs, "budget")[first];
  section.add(
      section.add(cube),
      {.kind = "heatmap",
       .title = "Retrieval by depth and length",
       .how =
           "Share of answers all of whose tokens are right, by where the needle is (0: at the beginning) and how long the "
           "prompt is.",
       .x = {"tokens", "prompt tokens"},
       .y = {"depth", "depth"},
       .pick = {{"policy", policy}, {"budget", budget}},
       .more = {{"value", {{"value", "exact"}, {"label", "exact answers"}}},
                {"scale", "sequential"},
                {"domain", {0, 1}}}});
}

}  // namespace

Contribution evaluate_contribution(const Document& document, const std::string& id) {
  const ReadPart part = only_part(document);
  const JsonField model = part.facts.member("model"), tasks = part.facts.member("tasks_file");
  const std::string name = model_name(model.member("name")), backend = part.facts.member("backend").text();
  Section section(id, fmt::format("What {} says", name));
  section.lines.push_back(fmt::format("{} tasks of {}, {} cache, backend {}.",
                                      part.cube("tasks", {"task"}).rows(), tasks.member("path").text(),
                                      part.facts.member("dtype").text(), backend));
  const PageCube numbers = outcomes_cube(part);
  const std::string cube = section.add(numbers);
  add_outcomes(section, cube);
  add_predictions(section, cube, numbers);
  add_correlations(section, part);
  add_retrieval(section, part);
  section.table = figures_table(*part.find("runs"), "Every figure of the runs, by its name in JSON");
  std::vector<Fact> facts = origin_facts(model);
  facts.emplace_back("tasks", tasks.member("path").text());
  facts.emplace_back("SHA-256 of the tasks", tasks.member("sha256").text());
  facts.emplace_back("seed of the bootstrap",
                     std::to_string(document.root().member("provenance").member("seed").integer()));
  const std::string origin = fmt::format("{}, backend {}", document.path, backend);
  return {{std::move(section)}, {{origin, name, cube, true}}, std::move(facts)};
}

}  // namespace kvbound::sim
