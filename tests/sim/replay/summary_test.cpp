#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/sim/measure/median.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/summary.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::summary_test {
namespace {

using test::matrix;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Two steps and two query heads with this perturbation.
LayerMetrics metrics(const Matrix& perturbation) {
  LayerMetrics metrics;
  metrics.perturbation = perturbation;
  metrics.relative = matrix({{0.5, kNan}, {0.25, 0}});
  metrics.bound = matrix({{8, 8}, {8, 8}});
  metrics.rounding = matrix({{1e-12, 1e-12}, {1e-12, 1e-12}});
  metrics.kept_mass = matrix({{1, 0.5}, {0.5, 0.25}});
  metrics.layer_perturbation = {3, 5};
  metrics.layer_relative = {kNan, 0.5};
  metrics.recall = {0.25, 0.75, kNan};
  return metrics;
}

RunResult run_of(const std::string& policy, std::vector<LayerMetrics> layers,
                 const std::string& budget = "20%") {
  RunResult run;
  run.run = {{policy, parse_policy(policy)}, parse_budget(budget), "reference"};
  run.layers = std::move(layers);
  return run;
}

TEST(Summary, MeansAreOverLayersStepsAndHeads) {
  const RunResult run =
      run_of("snapkv", {metrics(matrix({{4, 2}, {1, 1}})), metrics(matrix({{0, 0}, {8, 0}}))});
  const Summary summary = summarise(run, {{0, 3}, 2});
  EXPECT_EQ(summary.perturbation.value(), 2);
  EXPECT_EQ(summary.bound.value(), 8);
  EXPECT_EQ(summary.tightness.value(), 0.25);
  EXPECT_EQ(summary.kept_mass.value(), 0.5625);
  EXPECT_EQ(summary.relative.value(), 0.25);
  EXPECT_EQ(summary.relative.undefined, 2);
  EXPECT_EQ(summary.layer_perturbation.value(), 4);
  EXPECT_EQ(summary.layer_relative.value(), 0.5);
  EXPECT_EQ(summary.layer_relative.undefined, 2);
  EXPECT_EQ(summary.recall.value(), 0.5) << "over layers and KV heads";
  EXPECT_EQ(summary.recall.undefined, 2);
  EXPECT_EQ(summary.stage_one_mass.count, 0);
  EXPECT_EQ(summary.violations, 0);
  EXPECT_FALSE(summary.first_violation);
  EXPECT_EQ(summary.max_tightness, 1);
  ASSERT_TRUE(summary.tightest);
  EXPECT_EQ(summary.tightest->layer, 3) << "the trace's number, not the place in the list";
  EXPECT_EQ(summary.tightest->step, 1);
  EXPECT_EQ(summary.tightest->query_head, 0);
}

TEST(Summary, CountsViolationsBeyondRoundingAndSaysWhereTheFirstIs) {
  LayerMetrics within = metrics(matrix({{8, 8 + 1e-13}, {8, 8}}));
  LayerMetrics beyond = metrics(matrix({{8, 8}, {8.001, kNan}}));
  const Summary summary = summarise(run_of("snapkv", {within, beyond}), {{1, 2}, 2});
  EXPECT_FALSE(within.violates(0, 1));
  EXPECT_TRUE(beyond.violates(1, 0));
  EXPECT_TRUE(beyond.violates(1, 1)) << "NaN is a violation";
  EXPECT_EQ(summary.violations, 2);
  ASSERT_TRUE(summary.first_violation);
  EXPECT_EQ(summary.first_violation->layer, 2);
  EXPECT_EQ(summary.first_violation->step, 1);
  EXPECT_EQ(summary.first_violation->query_head, 0);
  LayerMetrics nan_bound = metrics(matrix({{1, 1}, {1, 1}}));
  (*nan_bound.bound)(0, 0) = kNan;
  EXPECT_TRUE(nan_bound.violates(0, 0));
}

TEST(Summary, OfNoPerturbationHasNoTightestPlace) {
  LayerMetrics zero = metrics(Matrix(2, 2));
  zero.bound = Matrix(2, 2);
  const Summary summary = summarise(run_of("snapkv", {zero}), {{0}, 2});
  EXPECT_EQ(summary.tightness.value(), 0) << "0/0 is 0";
  EXPECT_EQ(summary.max_tightness, 0);
  EXPECT_FALSE(summary.tightest);
}

TEST(Summary, CountsStageOneMassesOfAtMostOneHalf) {
  LayerMetrics two_stages = metrics(Matrix(2, 2));
  two_stages.stage_one_mass = matrix({{0.5, 0.75}, {std::nextafter(0.5, 1), 0.25}});
  const Summary summary = summarise(run_of("snapkv+critical", {two_stages}), {{0}, 2});
  EXPECT_EQ(summary.stage_one_low, 2) << "exactly one half is not more than one half";
  EXPECT_EQ(summary.stage_one_mass.count, 4);
}

TEST(Median, IsTheMiddleOneAndNothingOfNothing) {
  Median median;
  EXPECT_EQ(median.value(), std::nullopt);
  for (const double value : {5.0, std::numeric_limits<double>::infinity(), 1.0}) median.add(value);
  EXPECT_EQ(median.value(), 5);
  median.add(7);
  EXPECT_EQ(median.value(), 6) << "of an even count the mean of the middle two";
  median.add(kNan);
  EXPECT_TRUE(std::isnan(median.value().value()));
}

TEST(Median, OfAnEvenCountIsTheMeanOfTheMiddleTwoHoweverLargeTheyAre) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(),
                   kMost = std::numeric_limits<double>::max();
  EXPECT_EQ(median({4, 1}), 2.5);
  EXPECT_EQ(median({9, 2, 4, 1}), 3);
  EXPECT_EQ(median({kMost, kMost}), kMost);
  EXPECT_EQ(median({1, kInfinity, kInfinity, 2}), kInfinity);
  EXPECT_EQ(median({kInfinity, kInfinity}), kInfinity);
  EXPECT_TRUE(std::isnan(median({1, kNan, 2})));
}

LayerMetrics merging_metrics() {
  LayerMetrics merging = metrics(Matrix(2, 2));
  merging.bound.reset();
  merging.rounding.reset();
  MergeMetrics& merges = merging.merges.emplace();
  merges.counts = {.leaving = 10, .merged = 5, .clusters = 4, .singular = 1, .negative = 2, .far = 3};
  merges.changes = {{-1, 0, 3, std::nullopt}, {-1, 1, 1e-12, 1e-11}, {1, 1, 2, 1e-11}};
  return merging;
}

TEST(Summary, OfRunsThatMergeHasNoBoundAndNoViolationsOfIt) {
  const Summary summary = summarise(run_of("snapkv+keepkv", {merging_metrics()}), {{0}, 2});
  EXPECT_EQ(summary.bound.count, 0);
  EXPECT_EQ(summary.tightness.count, 0);
  EXPECT_EQ(summary.violations, 0);
  EXPECT_EQ(summary.kept_mass.count, 4);
  EXPECT_FALSE(summarise(run_of("snapkv", {metrics(Matrix(2, 2))}), {{0}, 2}).merges);
}

TEST(Summary, HasNoLargestMergePerturbationWhereOneIsNoNumber) {
  for (size_t wrong = 0; wrong < 3; ++wrong) {
    LayerMetrics merging = merging_metrics();
    merging.merges->changes[wrong].perturbation = kNan;
    const Summary summary = summarise(run_of("snapkv+keepkv", {merging_metrics(), merging}), {{0, 1}, 2});
    EXPECT_TRUE(std::isnan(summary.merges->max_perturbation)) << "whatever comes after it";
    EXPECT_EQ(summary.merges->perturbation.undefined, 1);
  }
}

TEST(Summary, AddsUpWhatMergedAndWhereAMergeWasNotLossless) {
  const Summary summary =
      summarise(run_of("snapkv+keepkv", {merging_metrics(), merging_metrics()}), {{2, 5}, 2});
  ASSERT_TRUE(summary.merges);
  EXPECT_EQ(summary.merges->counts.leaving, 20);
  EXPECT_EQ(summary.merges->counts.far, 6);
  EXPECT_EQ(summary.merges->perturbation.count, 6);
  EXPECT_NEAR(summary.merges->perturbation.sum, 10, 1e-11);
  EXPECT_EQ(summary.merges->max_perturbation, 3);
  EXPECT_EQ(summary.merges->lossless, 4);
  EXPECT_EQ(summary.merges->violations, 2);
  ASSERT_TRUE(summary.merges->first_violation);
  EXPECT_EQ(summary.merges->first_violation->layer, 2);
  EXPECT_EQ(summary.merges->first_violation->step, 1);
  EXPECT_EQ(summary.merges->first_violation->query_head, 1);
  EXPECT_FALSE(summary.later) << "it was not asked for";
}

TEST(Summary, CountsHowOftenPredictionsAreGoodEnoughForABound) {
  LayerMetrics merging = merging_metrics();
  LaterQueries& later = merging.merges->later.emplace();
  const Matrix nothing = matrix({{kNan, kNan}, {kNan, kNan}});
  later = {nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, {{1, 0}}};
  later.perturbation = matrix({{1, 2}, {6, kNan}});
  later.prediction_error = matrix({{0.5, 1}, {0.25, kNan}});
  later.joint_bound = matrix({{4, std::numeric_limits<double>::infinity()}, {5, kNan}});
  later.sag = matrix({{0.5, 0.25}, {-0.75, kNan}});
  const Summary summary = summarise(run_of("snapkv+keepkv", {merging}), {{3}, 2});
  ASSERT_TRUE(summary.later);
  EXPECT_EQ(summary.later->perturbation.value(), 3) << "of the three where a merged entry is in the cache";
  EXPECT_EQ(summary.later->perturbation.undefined, 0);
  EXPECT_EQ(summary.later->sag.value(), 0);
  EXPECT_EQ(summary.later->predicted, 3);
  EXPECT_EQ(summary.later->predictable, 2) << "1 is not below 1";
  EXPECT_EQ(summary.later->prediction_error.value(), 0.375);
  EXPECT_EQ(summary.later->joint_bound.value(), 4.5);
  EXPECT_EQ(summary.later->bound.value(), std::nullopt);
  EXPECT_EQ(summary.later->violations, 1);
  ASSERT_TRUE(summary.later->first_violation);
  EXPECT_EQ(summary.later->first_violation->layer, 3);
  EXPECT_EQ(summary.later->first_violation->step, 1);
}

TEST(ImprovedHeads, HaveAMeanPerturbationStrictlyBelowTheBase) {
  const RunResult base =
      run_of("snapkv", {metrics(matrix({{4, 2}, {2, 2}})), metrics(matrix({{1, 1}, {1, 1}}))});
  const RunResult run =
      run_of("snapkv+critical", {metrics(matrix({{0, 2}, {5, 2}})), metrics(matrix({{2, 0}, {0, 1}}))});
  // means 2.5 < 3, 2 = 2; 1 = 1, 0.5 < 1
  const ImprovedHeads heads = improved_heads(run, base);
  EXPECT_EQ(heads.improved, 2);
  EXPECT_EQ(heads.heads, 4);
  EXPECT_EQ(improved_heads(base, base).improved, 0);
}

TEST(BaseOf, IsTheBasePolicyAtTheSameBudget) {
  ReplayResult result;
  result.scope.steps = 1;
  for (const char* budget : {"10%", "20%"}) {
    for (const char* policy : {"snapkv:pool=1", "snapkv", "snapkv+critical"}) {
      result.runs.push_back(run_of(policy, {}, budget));
    }
  }
  const auto base = std::optional(parse_policy("snapkv:window=32"));
  EXPECT_EQ(base_of(result.runs[2], result, base), &result.runs[1]);
  EXPECT_EQ(base_of(result.runs[3], result, base), &result.runs[4]);
  EXPECT_EQ(base_of(result.runs[4], result, base), nullptr) << "it is the base itself";
  EXPECT_EQ(base_of(result.runs[4], result, std::nullopt), nullptr);
  EXPECT_EQ(base_of(result.runs[4], result, parse_policy("snapkv:window=8")), nullptr);
  result.scope.steps = 0;
  EXPECT_EQ(base_of(result.runs[2], result, base), nullptr) << "nothing was measured";
}

TEST(ColumnMeans, AreOnePerQueryHead) {
  EXPECT_EQ(column_means(matrix({{1, 2, 3}, {3, 4, 6}})), (std::vector<double>{2, 3, 4.5}));
  for (const double mean : column_means(Matrix(0, 2)))
    EXPECT_TRUE(std::isnan(mean)) << "nothing was measured";
  EXPECT_TRUE(std::isnan(column_means(matrix({{1, kNan}, {1, 1}}))[1]));
}

}  // namespace
}  // namespace kvbound::sim::summary_test
