// Cubes of made-up results.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/sim/evaluate/evaluate_cubes.hpp>
#include <kvbound/sim/options/policy.hpp>

namespace kvbound::sim::evaluate_cubes_test {
namespace {

Run run_of(const std::string& policy, const std::string& budget) {
  return {{policy, parse_policy(policy)}, parse_budget(budget), "reference"};
}

Task task_of(const std::string& kind, bool is_answer, std::optional<double> depth = {}) {
  Task task;
  task.kind = kind;
  task.is_answer = is_answer;
  task.depth = depth;
  task.prompt = {1, 2, 3};
  task.target = {7, 8};
  return task;
}

RunFigures figures_of(std::vector<double> kl, std::vector<double> nll, std::vector<int64_t> top1,
                      double entries) {
  RunFigures figures;
  figures.kl = std::move(kl);
  figures.nll = std::move(nll);
  figures.top1 = std::move(top1);
  figures.hidden_error = {0.5, entries};
  figures.entries = {entries, entries + 1};
  figures.stored_entries = {entries, entries + 3};
  figures.open_loop.perturbation = entries;
  figures.open_loop.kept_mass = 0.25;
  figures.violations = 1;
  return figures;
}

TaskResult result_of(std::vector<double> nll, std::vector<int64_t> top1, std::vector<RunFigures> runs) {
  TaskResult result;
  result.full_nll = std::move(nll);
  result.full_top1 = std::move(top1);
  result.runs = std::move(runs);
  result.steps = 2;
  return result;
}

// Two answers at different depths and a continuation, through two policies.
EvaluateReport made_report() {
  EvaluateReport report;
  report.base = parse_policy("snapkv");
  report.resamples = 200;
  EvaluateResult& result = report.result;
  result.model.layers = 2;
  result.model.kv_heads = 3;
  result.model.head_dim = 4;
  result.options.dtype = Dtype::f16;
  result.options.runs = {run_of("snapkv", "10%"), run_of("h2o", "10%")};
  result.tasks = {task_of("needle", true, 0), task_of("prose", false), task_of("needle", true, 1)};
  result.results = {
      result_of({1, 3}, {7, 8},
                {figures_of({0, 2}, {2, 4}, {7, 8}, 10), figures_of({0, 4}, {5, 5}, {7, 9}, 20)}),
      result_of({1, 1}, {5, 5},
                {figures_of({1, 1}, {1, 1}, {5, 6}, 10), figures_of({1, 1}, {1, 3}, {5, 5}, 20)}),
      result_of({2, 2}, {7, 9},
                {figures_of({0, 0}, {2, 2}, {7, 9}, 30), figures_of({2, 0}, {3, 2}, {1, 9}, 40)})};
  return report;
}

const Part kMade = evaluate_part(made_report());
constexpr int64_t kRuns = 3;  // the full cache, snapkv and h2o

double number(const Part& part, const char* cube, const char* column, int64_t row) {
  return part.find(cube)->find(column)->numbers()[static_cast<size_t>(row)];
}

// A figure of a run; 0: of the full cache.
double of_run(const char* column, int64_t kind, int64_t run, const Part& part = kMade) {
  return number(part, "runs", column, kind * (part.find("runs")->axes[1]->size()) + run);
}

std::vector<std::string> key(const Part& part, const char* cube, size_t axis, size_t key) {
  return part.find(cube)->axes[axis]->keys[key].texts();
}

TEST(EvaluateCubes, GroupTasksByKindInTheOrderOfTheirFirstTasks) {
  EXPECT_EQ(key(kMade, "runs", 0, 0), (std::vector<std::string>{"needle", "prose"}));
  EXPECT_EQ(key(kMade, "runs", 0, 1), (std::vector<std::string>{"answer", "continuation"}));
  EXPECT_EQ(kMade.find("runs")->axes[0]->keys[2].numbers(), (std::vector<double>{2, 1}));
  EXPECT_EQ(key(kMade, "runs", 1, 0), (std::vector<std::string>{"full cache", "snapkv", "h2o"}));
}

TEST(EvaluateCubes, HaveTheFullCacheFirst) {
  EXPECT_EQ(of_run("nll", 0, 0), 2);
  EXPECT_EQ(of_run("exact", 0, 0), 1);
  EXPECT_EQ(of_run("hits", 0, 0), 0.75);
  EXPECT_TRUE(std::isnan(of_run("kl", 0, 0)));
  EXPECT_TRUE(std::isnan(of_run("violations", 0, 0)));
}

TEST(EvaluateCubes, HaveMeansOverTasksOfMeansOverTokens) {
  EXPECT_EQ(of_run("kl", 0, 1), 0.5);
  EXPECT_EQ(of_run("nll", 0, 1), 2.5);
  EXPECT_EQ(of_run("delta_nll", 0, 1), 0.5);
  EXPECT_EQ(of_run("agreement", 0, 1), 1);
  EXPECT_EQ(of_run("hits", 0, 1), 0.75);
  EXPECT_EQ(of_run("exact", 0, 1), 1);
  EXPECT_EQ(of_run("perturbation", 0, 1), 20);
  EXPECT_TRUE(std::isnan(of_run("bound", 0, 1))) << "no task has it";
  EXPECT_EQ(of_run("violations", 0, 1), 2);
  EXPECT_EQ(of_run("hidden_error", 0, 1), 20);
  EXPECT_EQ(number(kMade, "layers", "hidden_error", 2), 0.5);
  EXPECT_TRUE(std::isnan(of_run("hits", 1, 1))) << "a continuation is no answer";
}

TEST(EvaluateCubes, HaveEveryTaskTokenAndStep) {
  EXPECT_EQ(number(kMade, "task_runs", "kl", 2 * kRuns + 2), 1);
  EXPECT_EQ(number(kMade, "tokens", "nll", 5 * kRuns), 2) << "the last token, by the full cache";
  EXPECT_EQ(number(kMade, "tokens", "kl", 1 * kRuns + 2), 4);
  EXPECT_EQ(number(kMade, "tokens", "top1", 1 * kRuns + 2), 9);
  EXPECT_EQ(number(kMade, "steps", "entries", 3 * kRuns + 1), 11);
  EXPECT_EQ(number(kMade, "steps", "stored_entries", 3 * kRuns + 1), 13);
  EXPECT_EQ(number(kMade, "task_layers", "hidden_error", (2 * kRuns + 1) * 2 + 1), 30);
}

TEST(EvaluateCubes, CountEntriesAndStoredBytes) {
  EXPECT_EQ(of_run("entries", 0, 1), 20.5);
  EXPECT_EQ(of_run("bytes", 0, 1), 21.5 * 2 * 3 * 2 * 4 * 2)
      << "layers, heads, keys and values, head_dim, bytes of F16";
}

TEST(EvaluateCubes, PairDifferencesFromTheBaseByTask) {
  EXPECT_TRUE(std::isnan(of_run("kl_less_base", 0, 0))) << "the full cache";
  EXPECT_TRUE(std::isnan(of_run("kl_less_base", 0, 1))) << "the base itself";
  EXPECT_EQ(of_run("kl_less_base", 0, 2), 1);
  EXPECT_EQ(of_run("kl_less_base_error", 0, 2), 0) << "1 in both tasks, although KL itself varies";
  EXPECT_EQ(of_run("nll_less_base", 0, 2), 1.25);
  EXPECT_EQ(of_run("hits_less_base", 0, 2), -0.5);
  EXPECT_EQ(of_run("exact_less_base", 0, 2), -0.5) << "one answer of two that the base has";
  EvaluateReport without = made_report();
  without.base.reset();
  EXPECT_FALSE(evaluate_part(without).find("runs")->find("kl_less_base")->says_something());
}

TEST(EvaluateCubes, CompareWithTheBaseAtTheSameBudget) {
  EvaluateReport report = made_report();
  for (const char* policy : {"h2o", "snapkv"}) report.result.options.runs.push_back(run_of(policy, "20%"));
  for (TaskResult& task : report.result.results) {
    task.runs.push_back(figures_of({5, 5}, {1, 1}, {7, 8}, 30));
    task.runs.push_back(figures_of({2, 2}, {1, 1}, {7, 8}, 30));
  }
  const Part part = evaluate_part(report);
  EXPECT_EQ(of_run("kl_less_base", 0, 2, part), 1) << "h2o at 10 %";
  EXPECT_EQ(of_run("kl_less_base", 0, 3, part), 3) << "h2o at 20 %";
  EXPECT_TRUE(std::isnan(of_run("kl_less_base", 0, 4, part)));
}

TEST(EvaluateCubes, TellAnswersFromContinuationsOfOneKind) {
  EvaluateReport report = made_report();
  for (Task& task : report.result.tasks) task.kind = "same";
  const Part part = evaluate_part(report);
  EXPECT_EQ(key(part, "runs", 0, 0), (std::vector<std::string>{"same", "same"}));
  EXPECT_EQ(key(part, "runs", 0, 1), (std::vector<std::string>{"answer", "continuation"}));
}

TEST(EvaluateCubes, CountExactAnswersByDepth) {
  const Cube& depths = *kMade.find("depths");
  EXPECT_EQ(depths.axes[0]->keys[1].numbers(), (std::vector<double>{0, 1}));
  EXPECT_EQ(depths.axes[0]->keys[2].numbers(), (std::vector<double>{1, 1})) << "tasks";
  EXPECT_EQ(depths.find("exact")->numbers(), (std::vector<double>{1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(depths.find("hits")->numbers(), (std::vector<double>{1, 1, 0.5, 0.5, 0.5, 0}));
}

TEST(EvaluateCubes, OfNothingHaveAllFigures) {
  const Part part = evaluate_part({});
  EXPECT_EQ(part.cubes.size(), 9U);
  for (const Cube& cube : part.cubes) EXPECT_FALSE(cube.columns.empty()) << cube.name;
  const std::vector<Figure> choosable = evaluate_columns();
  for (const char* name : {"form", "kl"})
    EXPECT_NE(std::ranges::find(choosable, name, &Figure::name), choosable.end()) << name;
}

}  // namespace
}  // namespace kvbound::sim::evaluate_cubes_test
