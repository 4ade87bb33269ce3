// Whether open-loop figures order runs as outcomes do, on made-up results whose orders are known.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/sim/evaluate/correlations.hpp>
#include <kvbound/sim/options/policy.hpp>

namespace kvbound::sim::correlations_test {
namespace {

const Bootstrap kBootstrap(200, 0);

Run run_of(const std::string& policy, const std::string& budget) {
  return {{policy, parse_policy(policy)}, parse_budget(budget), "reference"};
}

// What a run did on a task: KL on two tokens, the rise of their NLL, L.
struct Made {
  std::vector<double> kl, rise;
  double perturbation;
  std::optional<double> bound = 1;
};

TaskResult task_of(const std::string& id, const std::vector<Made>& runs) {
  TaskResult result;
  result.id = id;
  result.full_nll = std::vector<double>(runs.front().kl.size(), 0.5);
  for (const Made& made : runs) {
    RunFigures figures;
    figures.kl = made.kl;
    for (const double rise : made.rise) figures.nll.push_back(0.5 + rise);
    figures.open_loop.perturbation = made.perturbation;
    figures.open_loop.layer_relative = made.perturbation * made.perturbation;
    figures.open_loop.kept_mass = 1 - made.perturbation / 100;
    figures.open_loop.recall = 0.5;
    figures.open_loop.bound = made.bound;
    result.runs.push_back(figures);
  }
  return result;
}

EvaluateResult result_of(const std::vector<Run>& runs, const std::vector<TaskResult>& tasks) {
  EvaluateResult result;
  result.options.runs = runs;
  result.results = tasks;
  result.tasks.resize(tasks.size());
  return result;
}

const Correlation& find(const std::vector<Correlation>& all, Outcome outcome, Indicator indicator,
                        const std::string& budget) {
  return *std::ranges::find_if(all, [&](const Correlation& one) {
    return one.outcome == outcome && one.indicator == indicator &&
           (one.budget ? to_string(*one.budget) : "all") == budget;
  });
}

const std::vector<Run> kThree{run_of("snapkv", "10%"), run_of("h2o", "10%"), run_of("tova", "10%")};

TEST(Correlations, OfFiguresThatOrderAsKlDoesAreOne) {
  const EvaluateResult result =
      result_of(kThree, {task_of("a", {{{1, 1}, {3, 3}, 5}, {{2, 2}, {2, 2}, 6}, {{3, 3}, {1, 1}, 7}}),
                         task_of("b", {{{10, 1}, {9, 1}, 1}, {{20, 2}, {8, 1}, 2}, {{30, 3}, {7, 1}, 3}})});
  const std::vector<Correlation> all = correlations(result, kBootstrap);
  EXPECT_EQ(all.size(), kOutcomes.size() * kIndicators.size()) << "one budget: nothing is pooled";
  for (const Indicator indicator :
       {Indicator::perturbation, Indicator::layer_relative, Indicator::lost_mass, Indicator::other_half}) {
    const Correlation& found = find(all, Outcome::kl, indicator, "10%");
    EXPECT_EQ(found.of_tasks->mean, 1) << name(indicator);
    EXPECT_EQ(found.of_tasks->count, 2);
    EXPECT_EQ(*found.of_means, 1);
    EXPECT_EQ(found.pairs->mean, 1);
    EXPECT_EQ(found.policies, 3);
  }
  EXPECT_EQ(find(all, Outcome::delta_nll, Indicator::perturbation, "10%").of_tasks->mean, -1);
  EXPECT_EQ(find(all, Outcome::delta_nll, Indicator::perturbation, "10%").pairs->mean, 0);
}

// Tasks of two kinds with opposite orders: each kind has its own correlations, and none of both together.
TEST(Correlations, AreOfTasksOfOneKind) {
  EvaluateResult result = result_of(kThree, {task_of("a", {{{10}, {1}, 5}, {{20}, {1}, 6}, {{30}, {1}, 7}}),
                                             task_of("b", {{{3}, {1}, 5}, {{2}, {1}, 6}, {{1}, {1}, 7}}),
                                             task_of("c", {{{3}, {1}, 5}, {{2}, {1}, 6}, {{1}, {1}, 7}})});
  for (Task& task : result.tasks) task.kind = "needle";
  result.tasks[0].is_answer = true;
  const std::vector<Correlation> all = correlations(result, kBootstrap);
  EXPECT_EQ(all.size(), 2 * kOutcomes.size() * kIndicators.size());
  const Correlation &answers = all.front(), &others = all[all.size() / 2];
  EXPECT_EQ(answers.indicator, Indicator::perturbation);
  EXPECT_EQ(others.indicator, Indicator::perturbation);
  EXPECT_TRUE(answers.answers);
  EXPECT_FALSE(others.answers);
  EXPECT_EQ(others.kind, "needle");
  EXPECT_EQ(answers.of_tasks->mean, 1);
  EXPECT_EQ(answers.of_tasks->count, 1);
  EXPECT_EQ(others.of_tasks->mean, -1);
  EXPECT_EQ(others.of_tasks->count, 2);
  EXPECT_EQ(*others.of_means, -1);
}

TEST(Correlations, OfFiguresThatSayNothingAreLeftOut) {
  const EvaluateResult result =
      result_of(kThree, {task_of("a", {{{1}, {1}, 5}, {{2}, {2}, 5}, {{3}, {3}, 5}})});
  const std::vector<Correlation> all = correlations(result, kBootstrap);
  EXPECT_FALSE(find(all, Outcome::kl, Indicator::perturbation, "10%").of_tasks) << "all L equal: no order";
  EXPECT_EQ(find(all, Outcome::kl, Indicator::perturbation, "10%").pairs->mean, 0.5) << "chance";
  EXPECT_FALSE(find(all, Outcome::kl, Indicator::missed, "10%").of_tasks);
  const Correlation& half = find(all, Outcome::kl, Indicator::other_half, "10%");
  EXPECT_EQ(half.policies, 0) << "a target of one token has no other half";
  EXPECT_FALSE(half.of_tasks);
}

// Two tasks of opposite orders: the mean of their correlations is 0, and the means are ordered as in the task
// of larger numbers, unless the bootstrap draws the other one alone.
TEST(Correlations, OfMeansAreThoseOfMeansAndNotMeansOfCorrelations) {
  const EvaluateResult result = result_of(
      kThree, {task_of("large", {{{10, 10}, {1, 1}, 50}, {{20, 20}, {1, 1}, 60}, {{30, 30}, {1, 1}, 70}}),
               task_of("small", {{{3, 3}, {1, 1}, 5}, {{2, 2}, {1, 1}, 6}, {{1, 1}, {1, 1}, 7}})});
  const std::vector<Correlation> all = correlations(result, kBootstrap);
  const Correlation& found = find(all, Outcome::kl, Indicator::perturbation, "10%");
  EXPECT_EQ(found.of_tasks->mean, 0);
  EXPECT_EQ(*found.of_means, 1);
  ASSERT_TRUE(found.of_means_interval);
  EXPECT_EQ(found.of_means_interval->low, -1);
  EXPECT_EQ(found.of_means_interval->high, 1);
  EXPECT_EQ(found.pairs->mean, 0.5);
}

TEST(Correlations, OfBoundsAreOverPoliciesThatHaveThem) {
  std::vector<Made> runs{{{1}, {1}, 5}, {{2}, {2}, 6}, {{3}, {3}, 7}};
  runs[0].bound = 2;
  runs[1].bound = 1;
  runs[2].bound.reset();
  const std::vector<Correlation> all = correlations(result_of(kThree, {task_of("a", runs)}), kBootstrap);
  EXPECT_EQ(find(all, Outcome::kl, Indicator::bound, "10%").policies, 2);
  EXPECT_EQ(find(all, Outcome::kl, Indicator::bound, "10%").of_tasks->mean, -1);
  EXPECT_EQ(find(all, Outcome::kl, Indicator::perturbation, "10%").policies, 3);
  EXPECT_EQ(find(all, Outcome::kl, Indicator::perturbation_with_bound, "10%").policies, 2);
  EXPECT_EQ(find(all, Outcome::kl, Indicator::perturbation_with_bound, "10%").of_tasks->mean, 1);
}

TEST(Correlations, PooledOverBudgetsAreMostlyTheBudgets) {
  auto runs = kThree;
  for (const char* policy : {"snapkv", "h2o", "tova"}) runs.push_back(run_of(policy, "40%"));
  const EvaluateResult result = result_of(
      runs,
      {task_of(
          "a",
          {{{10}, {1}, 52}, {{11}, {1}, 51}, {{12}, {1}, 50}, {{1}, {1}, 7}, {{2}, {1}, 6}, {{3}, {1}, 5}})});
  const std::vector<Correlation> all = correlations(result, kBootstrap);
  EXPECT_EQ(all.size(), 3 * kOutcomes.size() * kIndicators.size());
  EXPECT_EQ(find(all, Outcome::kl, Indicator::perturbation, "10%").of_tasks->mean, -1);
  EXPECT_EQ(find(all, Outcome::kl, Indicator::perturbation, "40%").of_tasks->mean, -1);
  const Correlation& pooled = find(all, Outcome::kl, Indicator::perturbation, "all");
  EXPECT_NEAR(pooled.of_tasks->mean, 1 - 6.0 * 16 / (6 * 35), 1e-12);
  EXPECT_EQ(pooled.policies, 6);
}

}  // namespace
}  // namespace kvbound::sim::correlations_test
