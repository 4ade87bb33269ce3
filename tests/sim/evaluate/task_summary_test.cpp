// Means over tasks, on made-up results.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/sim/evaluate/task_summary.hpp>
#include <kvbound/sim/options/policy.hpp>

namespace kvbound::sim::task_summary_test {
namespace {

const Bootstrap kBootstrap(200, 0);

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
  return result;
}

// Two answers at different depths and a continuation, through two policies.
EvaluateResult made_result() {
  EvaluateResult result;
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
  return result;
}

const EvaluateSummary kMade = summarise(made_result(), parse_policy("snapkv"), kBootstrap);

TEST(EvaluateSummary, GroupsTasksByKindInTheOrderOfTheirFirstTasks) {
  ASSERT_EQ(kMade.kinds.size(), 2U);
  EXPECT_EQ(kMade.kinds[0].kind, "needle");
  EXPECT_TRUE(kMade.kinds[0].answers);
  EXPECT_EQ(kMade.kinds[0].tasks, 2);
  EXPECT_EQ(kMade.kinds[0].full_nll, 2);
  EXPECT_EQ(kMade.kinds[0].full_exact, 1);
  EXPECT_EQ(kMade.kinds[0].full_hits, 0.75);
  EXPECT_EQ(kMade.kinds[1].kind, "prose");
  EXPECT_FALSE(kMade.kinds[1].answers);
  EXPECT_EQ(kMade.runs.size(), 4U);
}

TEST(EvaluateSummary, HasMeansOverTasksOfMeansOverTokens) {
  const RunSummary& snapkv = kMade.runs[0];
  EXPECT_EQ(snapkv.kl.mean, 0.5);
  EXPECT_EQ(snapkv.nll, 2.5);
  EXPECT_EQ(snapkv.delta_nll.mean, 0.5);
  EXPECT_EQ(snapkv.agreement.mean, 1);
  EXPECT_EQ(snapkv.hits->mean, 0.75);
  EXPECT_EQ(snapkv.exact, 1);
  EXPECT_EQ(snapkv.open_loop.perturbation, 20);
  EXPECT_FALSE(snapkv.open_loop.bound) << "no task has it";
  EXPECT_EQ(snapkv.violations, 2);
  EXPECT_EQ(snapkv.hidden_error, (std::vector<double>{0.5, 20}));
  EXPECT_FALSE(kMade.runs[2].hits) << "a continuation is no answer";
}

TEST(EvaluateSummary, CountsEntriesAndStoredBytes) {
  EXPECT_EQ(kMade.runs[0].entries, 20.5);
  EXPECT_EQ(kMade.runs[0].bytes, 21.5 * 2 * 3 * 2 * 4 * 2)
      << "layers, heads, keys and values, head_dim, bytes of F16";
}

TEST(EvaluateSummary, PairsDifferencesFromTheBaseByTask) {
  EXPECT_FALSE(kMade.runs[0].kl_less_base) << "the base itself";
  const RunSummary& h2o = kMade.runs[1];
  EXPECT_EQ(h2o.kl_less_base->mean, 1);
  EXPECT_EQ(*h2o.kl_less_base->standard_error, 0) << "1 in both tasks, although KL itself varies";
  EXPECT_EQ(h2o.nll_less_base->mean, 1.25);
  EXPECT_EQ(h2o.hits_less_base->mean, -0.5);
  EXPECT_EQ(h2o.exact_less_base->mean, -0.5) << "one answer of two that the base has";
  EXPECT_FALSE(summarise(made_result(), std::nullopt, kBootstrap).runs[1].kl_less_base);
}

TEST(EvaluateSummary, ComparesWithTheBaseAtTheSameBudget) {
  EvaluateResult result = made_result();
  for (const char* policy : {"h2o", "snapkv"}) result.options.runs.push_back(run_of(policy, "20%"));
  for (TaskResult& task : result.results) {
    task.runs.push_back(figures_of({5, 5}, {1, 1}, {7, 8}, 30));
    task.runs.push_back(figures_of({2, 2}, {1, 1}, {7, 8}, 30));
  }
  const EvaluateSummary summary = summarise(result, parse_policy("snapkv"), kBootstrap);
  EXPECT_EQ(summary.runs[1].kl_less_base->mean, 1) << "h2o at 10 %";
  EXPECT_EQ(summary.runs[2].kl_less_base->mean, 3) << "h2o at 20 %";
  EXPECT_FALSE(summary.runs[3].kl_less_base);
}

TEST(EvaluateSummary, TellsAnswersFromContinuationsOfOneKind) {
  EvaluateResult result = made_result();
  for (Task& task : result.tasks) task.kind = "same";
  const EvaluateSummary summary = summarise(result, std::nullopt, kBootstrap);
  ASSERT_EQ(summary.runs.size(), 4U);
  EXPECT_TRUE(summary.runs[0].answers);
  EXPECT_FALSE(summary.runs[2].answers);
  EXPECT_EQ(summary.kinds[0].tasks, 2);
}

TEST(EvaluateSummary, CountsExactAnswersByDepth) {
  ASSERT_EQ(kMade.depths.size(), 6U);
  EXPECT_FALSE(kMade.depths[0].run);
  EXPECT_EQ(kMade.depths[0].depth, 0);
  EXPECT_EQ(kMade.depths[0].exact, 1);
  EXPECT_EQ(kMade.depths[1].exact, 0);
  EXPECT_EQ(kMade.depths[1].hits, 0.5);
  EXPECT_EQ(kMade.depths[4].run, 1U);
  EXPECT_EQ(kMade.depths[4].exact, 0);
  EXPECT_EQ(kMade.depths[4].tasks, 1);
}

}  // namespace
}  // namespace kvbound::sim::task_summary_test
