#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/sim/diff/judge/merged_errors.hpp>

#include "support/session_cases.hpp"
#include "support/trace_layer.hpp"

namespace kvbound::sim::merged_errors_test {
namespace {

using reference::Arithmetic;

// All keys are ln 2 = 0.69 and all queries 1: with relative input errors of 2^-9 every logit is off by twice
// that share of 0.69, plus negligible terms.
constexpr double kInput = 0x1p-9;
const double kLogit = 2 * kInput * std::log(2);

Arithmetic rounded_inputs() {
  Arithmetic arithmetic = reference::double_precision();
  arithmetic.input = kInput;
  return arithmetic;
}

// Four prompt tokens, two steps.
traces::Layer layer_of() { return test::weighted_layer(4, {{2, 2, 2, 2, 2, 2}}); }

// A KeepKV policy with this prediction and kind of scores.
Policy predicting(Prediction predict, ScoreKind scores) {
  KeepKv method;
  method.prediction.predict = predict;
  method.prediction.scores = scores;
  return {H2o{}, {}, {}, {}, method};
}

struct Case {
  explicit Case(const Policy& policy_, const Arithmetic& arithmetic_ = rounded_inputs(),
                Dtype storage = Dtype::f64)
      : layer(layer_of()),
        policy(policy_),
        arithmetic(arithmetic_),
        errors(layer, policy, arithmetic, storage, 0) {}

  // The error of the predicted log score of entries 0 and 1 after their merge: a mean of two scores with
  // equal errors has the same error.
  double log_score_error() const {
    const Matrix query = test::matrix({{1}});
    const Matrix rows = test::matrix({{std::log(2)}, {std::log(2)}});
    const Matrix scores = test::matrix({{0, 0}});
    reference::ClusterMembers members;
    members.keys = members.values = rows;
    members.votes = {1, 1};
    members.log_scores = scores;
    return errors.merged({query, scores, {}, {0, 1}}, members, {0, 1}).log_scores.front();
  }

  traces::Layer layer;
  Policy policy;
  Arithmetic arithmetic;
  MergedErrors errors;
};

TEST(MergedErrors, OfEntriesThatDidNotMergeAreThoseOfStorageAlone) {
  Case given(predicting(Prediction::ema, ScoreKind::attention));
  given.arithmetic.input_floor = 0.5;
  EXPECT_EQ(given.errors.entry(3).key, std::vector<double>{0});
  EXPECT_EQ(given.errors.entry(3).value, std::vector<double>{0});
  EXPECT_EQ(given.errors.stored_key(3, std::vector<double>{-4}), std::vector<double>{4 * kInput + 0.5});
  EXPECT_EQ(given.errors.stored_value(3, std::vector<double>{8}), std::vector<double>{8 * kInput + 0.5});
}

TEST(MergedErrors, OfAMergedEntryAreItsOwnAndThoseOfStorageUntilItLeaves) {
  Case given(predicting(Prediction::ema, ScoreKind::attention));
  given.errors.put(3, {{0.25}, {0.125}, {}});
  EXPECT_EQ(given.errors.stored_key(3, std::vector<double>{4}), std::vector<double>{0.25 + 4 * kInput});
  EXPECT_EQ(given.errors.stored_value(3, std::vector<double>{-8}), std::vector<double>{0.125 + 8 * kInput});
  EXPECT_EQ(given.errors.entry(2).key, std::vector<double>{0}) << "no other's";
  reference::HeadCache cache;
  for (const int64_t position : {5, 3, 1}) cache.append(position, std::vector{1.0}, std::vector{1.0});
  const CacheRowErrors rows = given.errors.of(cache);
  EXPECT_EQ(rows.keys.numbers()[1], 0.25) << "in the order of the cache";
  EXPECT_EQ(rows.values.numbers()[1], 0.125);
  EXPECT_EQ(rows.keys.numbers()[0] + rows.keys.numbers()[2], 0);
  given.errors.forget(3);
  EXPECT_EQ(given.errors.entry(3).key, std::vector<double>{0});
}

TEST(MergedErrors, AddWhatSharesOfASpreadValueCost) {
  Arithmetic arithmetic = reference::double_precision();
  arithmetic.unit = 0x1p-10;
  const double unit = 0x1p-10 + 0x1p-53;
  Case given({H2o{}, {}, {}, {}, Cam{}}, arithmetic);
  given.errors.put(3, {{0}, {0.25}, {}});
  given.errors.add_spread(3, std::vector<double>{-4}, std::vector<double>{2}, std::vector<double>{0.5}, 2);
  const double spread = 0.25 + 0.5 / 2 + 4 * unit * (4 + 2 * 0.5 * 2 + 0.25);
  EXPECT_DOUBLE_EQ(given.errors.entry(3).value.front(), spread);
  given.errors.add_on_the_way(3, std::vector<double>{-2}, 2);
  EXPECT_DOUBLE_EQ(given.errors.entry(3).value.front(), spread + 4 * unit * 4 / 2 * 2)
      << "four prompt tokens";
  EXPECT_EQ(given.errors.entry(3).key, std::vector<double>{0});
}

TEST(MergedErrors, KeepWhatStoringAValueCostThatSharesMadeSmaller) {
  Case given({H2o{}, {}, {}, {}, Cam{}});
  given.errors.add_storage(3, std::vector<double>{-8});
  EXPECT_EQ(given.errors.entry(3).value.front(), 8 * kInput);
  given.errors.add_storage(3, std::vector<double>{4});
  EXPECT_EQ(given.errors.stored_value(3, std::vector<double>{0}).front(), 12 * kInput);
  EXPECT_EQ(given.errors.stored_key(3, std::vector<double>{0}).front(), 0);
}

TEST(MergedErrors, IncludeTheRoundingOfMergedNumbersWhereTheLayersOwnFitTheStorage) {
  Case given(predicting(Prediction::ema, ScoreKind::attention), reference::double_precision(), Dtype::bf16);
  const double floor = 0x1p-134;
  given.errors.put(3, {{0.25}, {0.125}, {}});
  given.errors.store_key(3, std::vector<double>{-4});
  EXPECT_EQ(given.errors.entry(3).key, std::vector<double>{0.25 + 0x1p-8 * 4.25 + floor});
  EXPECT_EQ(given.errors.entry(3).value, std::vector<double>{0.125});
  given.errors.store_value(3, std::vector<double>{8});
  EXPECT_EQ(given.errors.entry(3).value, std::vector<double>{0.125 + 0x1p-8 * 8.125 + floor});
  EXPECT_EQ(given.errors.stored_key(2, std::vector<double>{-4}), std::vector<double>{0}) << "not merged";

  Case rounded(predicting(Prediction::ema, ScoreKind::attention), rounded_inputs(), Dtype::bf16);
  rounded.errors.store_key(3, std::vector<double>{-4});
  EXPECT_EQ(rounded.errors.stored_key(3, std::vector<double>{-4}), std::vector<double>{4 * kInput}) << "once";
}

TEST(MergedErrors, OfPredictedScoresAreThoseOfLogitsAndOfTheirSum) {
  const Matrix sums = test::matrix({{0.25}});
  const auto error = [&](Prediction predict, ScoreKind scores) {
    Case given(predicting(predict, scores));
    given.errors.accumulate_prompt(given.layer.prompt(), sums);
    return given.log_score_error();
  };
  EXPECT_NEAR(error(Prediction::current, ScoreKind::raw), kLogit, 0.01 * kLogit);
  EXPECT_NEAR(error(Prediction::current, ScoreKind::attention), kLogit, 0.01 * kLogit)
      << "the last query's own scores are raw";
  EXPECT_NEAR(error(Prediction::ema, ScoreKind::raw), kLogit, 0.01 * kLogit);
  // A mean of e^s, each off by a factor of at most e^t, is off by at most e^t - 1,
  // which is 0.284 for t = 0.25.
  EXPECT_GT(error(Prediction::ema, ScoreKind::attention), 0.25 + kLogit);
  EXPECT_LT(error(Prediction::ema, ScoreKind::attention), 0.35);
}

TEST(MergedErrors, OfAveragesAreTheLargestOfAllQueriesAndOfTheLastQuerysScoresItsOwn) {
  const auto error = [](Prediction predict) {
    Case given(predicting(predict, ScoreKind::raw));
    given.layer.window_queries = 3;
    given.layer.queries = Tensor(1, 5, 1);
    for (const auto& [row, query] : {std::pair(0, 1.0), std::pair(1, 4.0), std::pair(2, 2.0)}) {
      given.layer.queries.slice(0)(row, 0) = query;
    }
    given.errors.accumulate_prompt(given.layer.prompt(), {});
    return given.log_score_error();
  };
  EXPECT_NEAR(error(Prediction::ema), 4 * kLogit, 0.1 * kLogit);
  EXPECT_NEAR(error(Prediction::current), 2 * kLogit, 0.1 * kLogit);
}

// The errors of a step's attention: two logits off by `logit`, and a log-sum-exp off by 1/8.
reference::AttentionErrors step_errors(double logit) {
  reference::AttentionErrors errors;
  errors.log_sum_exp = {0.125};
  errors.logits = test::matrix({{logit, logit}});
  return errors;
}

TEST(MergedErrors, OfPredictionsTakeInEachStep) {
  reference::HeadCache cache;
  for (const int64_t position : {1, 0}) cache.append(position, std::vector{std::log(2)}, std::vector{1.0});
  const Matrix query = test::matrix({{1}}), sums = test::matrix({{0}});
  const auto errors_after = [&](Prediction predict, ScoreKind scores, double logit) {
    Case given(predicting(predict, scores));
    given.errors.accumulate_prompt(given.layer.prompt(), sums);
    given.errors.observe(query, cache, 5, step_errors(logit));
    return given.log_score_error();
  };
  for (const double logit : {0.03125, 0.0}) {
    const double largest = std::max(logit, kLogit);
    EXPECT_NEAR(errors_after(Prediction::ema, ScoreKind::raw, logit), largest, 0.05 * largest);
    EXPECT_NEAR(errors_after(Prediction::current, ScoreKind::raw, logit), logit, 0.05 * largest);
    EXPECT_NEAR(errors_after(Prediction::ema, ScoreKind::attention, logit), 0.125 + logit, 0.02);
  }
}

TEST(MergedErrors, OfPredictionsStartAnewWithACacheThatWasRebuilt) {
  Case given(predicting(Prediction::ema, ScoreKind::attention));
  given.errors.accumulate_prompt(given.layer.prompt(), test::matrix({{0.25}}));
  const Matrix query = test::matrix({{2}});
  given.errors.restart(query, given.layer.keys.slice(0));
  EXPECT_NEAR(given.log_score_error(), 2 * kLogit, 0.05 * kLogit);
}

TEST(MergedErrors, OfAMeanAreThoseOfItsMembersAndOfTheirWeights) {
  for (const Merge& method : {Merge{D2o{}}, Merge{KvMerger{}}, Merge{ConvexMerge{}}, Merge{KeepKv{}}}) {
    Case given({H2o{}, {}, {}, {}, method});
    given.errors.put(1, {{0.125}, {0.25}, {0}});
    const Matrix rows = test::matrix({{1}, {1}}), query = test::matrix({{1}}),
                 scores = test::matrix({{0, 0}});
    reference::ClusterMembers members;
    members.keys = members.values = rows;
    members.votes = {1, 1};
    members.log_scores = scores;
    const reference::MergedEntryErrors merged =
        given.errors.merged({query, scores, {}, {0, 1}}, members, {0, 1});
    // Half of each member's error, plus the rounding by storage of both; equal keys have equal weights.
    EXPECT_GE(merged.value.front(), 0.125 + kInput);
    EXPECT_LT(merged.value.front(), 0.3);
    EXPECT_GE(merged.key.front(), 0.0625 + kInput);
  }
}

}  // namespace
}  // namespace kvbound::sim::merged_errors_test
