#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/study/predict.hpp>
#include <kvbound/sim/study/score_history.hpp>

#include "support/oracle.hpp"
#include "support/threads.hpp"
#include "support/trace_layer.hpp"

namespace kvbound::sim::predict_test {
namespace {

using oracle::Bounded;
using oracle::Real;
using test::column;
using test::message_of;
using test::Random;
using Numbers = std::vector<double>;

constexpr int64_t kTokens = 7;  // matters for ema-paper only

// The predicted score of one entry after these scores (not their logarithms).
double predicted(PredictionRule by, const Numbers& scores, double ema = 0.5, int64_t window = 2) {
  ScoreHistory history(ema, window);
  for (const double score : scores) history.observe(Numbers{std::log(score)});
  return std::exp(history.predicted(by, kTokens)[0]);
}

TEST(ScoreHistory, ForetellsByMeansOfAllOfTheLastFewAndByTheLast) {
  const Numbers scores{1, 3, 8};
  EXPECT_NEAR(predicted(PredictionRule::mean, scores), 4, 1e-14);
  EXPECT_NEAR(predicted(PredictionRule::window_mean, scores), 5.5, 1e-14);
  EXPECT_NEAR(predicted(PredictionRule::window_mean, scores, 0.5, 3), 4, 1e-14);
  EXPECT_NEAR(predicted(PredictionRule::window_mean, scores, 0.5, 100), 4, 1e-14);
  EXPECT_NEAR(predicted(PredictionRule::window_mean, scores, 0.5, 1), 8, 1e-14);
  EXPECT_NEAR(predicted(PredictionRule::last, scores), 8, 1e-14);
}

TEST(ScoreHistory, ForetellsByMovingAverages) {
  // S = 1/8 + 3/4 + 4 = 39/8; the weights sum to 7/8, or count as 1 - 2^-7.
  EXPECT_NEAR(predicted(PredictionRule::ema, {1, 3, 8}), 39.0 / 7, 1e-14);
  EXPECT_NEAR(predicted(PredictionRule::ema_paper, {1, 3, 8}), 39.0 / 8 / (1 - 0x1p-7), 1e-14);
}

TEST(ScoreHistory, CountsForAnEntryOnlyTheQueriesThatSawIt) {
  ScoreHistory history(0.5, 2);
  history.observe(Numbers{0});
  history.observe(Numbers{0, std::log(4.0)});
  for (const PredictionRule by :
       {PredictionRule::ema, PredictionRule::mean, PredictionRule::window_mean, PredictionRule::last}) {
    EXPECT_NEAR(std::exp(history.predicted(by, kTokens)[1]), 4, 1e-14) << name(by);
  }
  history.observe(Numbers{0, std::log(2.0)});
  EXPECT_NEAR(std::exp(history.predicted(PredictionRule::mean, kTokens)[1]), 3, 1e-14);
  EXPECT_NEAR(std::exp(history.predicted(PredictionRule::window_mean, kTokens)[1]), 3, 1e-14);
}

// ln of the mean of exp(x): every term adds an exponential of a difference, off by 2 roundings and one
// of its argument (at most 746, beyond which it is 0 in any case), a product and a sum; then a
// logarithm, a quotient and a sum.
Bounded log_mean(VectorView log_scores) {
  const Real u = oracle::unit_roundoff();
  Real largest = log_scores[0], least = largest, sum = 0;
  for (const double x : log_scores) {
    largest = std::max(largest, Real(x));
    least = std::min(least, Real(x));
  }
  for (const double x : log_scores) sum += exp(Real(x) - largest);
  const Real value = largest + log(sum / std::ssize(log_scores));
  const Real argument = std::min(Real(746), Real(largest - least));
  const Real terms = std::ssize(log_scores) * (5 + argument) * u;
  return {value, (terms + 4 * u + 2 * u * (abs(largest) + abs(value))) * Real("1.01")};
}

TEST(ScoreHistoryOracle, MeansHoldForLogitsOfAnySize) {
  for (const double size : {1.0, 30.0, 1e4}) {
    const Matrix scores = Random(5).matrix(40, 11, size);
    ScoreHistory history(0.9, 7);
    for (int64_t i = 0; i < scores.rows(); ++i) history.observe(scores.row(i));
    const Numbers mean = history.predicted(PredictionRule::mean, kTokens),
                  window = history.predicted(PredictionRule::window_mean, kTokens);
    for (size_t j = 0; j < 11; ++j) {
      Numbers column;
      for (int64_t i = 0; i < scores.rows(); ++i) column.push_back(scores.row(i)[j]);
      EXPECT_TRUE(oracle::within(mean[j], log_mean(column))) << size;
      EXPECT_TRUE(oracle::within(window[j], log_mean(VectorView(column).last(7)))) << size;
    }
  }
}

TEST(ScoreHistory, RefusesEntriesThatAreMissingAndScoresThatAreNone) {
  ScoreHistory history(0.5, 2);
  history.observe(Numbers{0, 1});
  EXPECT_EQ(message_of<ShapeMismatch>([&] { history.observe(Numbers{0}); }),
            "log_scores is 1 but 2 entries are known");
  EXPECT_EQ(message_of<NonFinite>([&] {
              history.observe(Numbers{0, std::numeric_limits<double>::quiet_NaN()});
            }),
            "log_scores[1] is nan");
}

// One head of width 1: query e gives entry j the weight b_j^e / sum b^e.
traces::Layer power_layer(const Numbers& bases, const Numbers& queries, int64_t prompt_tokens,
                          int64_t steps) {
  traces::Layer layer;
  layer.shape = {1, 1, 1, 1};
  layer.prompt_tokens = prompt_tokens;
  layer.window_queries = std::ssize(queries) - steps;
  Numbers keys;
  for (const double base : bases) keys.push_back(std::log(base));
  layer.keys = column(keys);
  layer.values = column(Numbers(bases.size(), 1));
  layer.queries = column(queries);
  layer.output_projection = test::matrix({{1}});
  return layer;
}

PredictOptions options(int64_t steps, const std::string& policy, const std::string& top) {
  PredictOptions result;
  result.steps = steps;
  result.policy = parse_policy(policy);
  result.top = parse_budget(top);
  result.shares = {parse_budget("1"), parse_budget("50%"), parse_budget("100%")};
  return result;
}

int64_t row(ScoreKind scores, PredictionRule by) {
  const auto& all = predictors();
  const auto found =
      std::ranges::find_if(all, [&](const Predictor& p) { return p.scores == scores && p.by == by; });
  return found - all.begin();
}

TEST(LayerPrediction, OfAHandMadeStepIsThatOfPaper) {
  // The prompt's last query has weights (1, 3)/4, the step's (1, 3, 4)/8.
  const auto heads =
      layer_prediction(power_layer({1, 3, 4}, {1, 1}, 2, 1), options(1, "streaming-llm:sinks=1", "1"), {1});
  ASSERT_EQ(heads.size(), 1u);
  const HeadPrediction& head = heads[0];
  const int64_t last = row(ScoreKind::attention, PredictionRule::last);
  EXPECT_NEAR(head.relative_errors(last, 0), 1, 1e-14) << "(1/8 + 3/8) / (1/2)";
  EXPECT_NEAR(head.entry_errors(last, 0), 1, 1e-14);
  EXPECT_NEAR(head.relative_errors(row(ScoreKind::raw, PredictionRule::last), 0), 0, 1e-14);
  // Divided by 1 - 0.9^2 instead of 0.1: 10/19 of the scores.
  const int64_t paper = row(ScoreKind::raw, PredictionRule::ema_paper);
  EXPECT_NEAR(head.relative_errors(paper, 0), 9.0 / 19, 1e-14);
  EXPECT_NEAR(head.entry_errors(paper, 0), 9.0 / 19, 1e-14);
  EXPECT_EQ(head.evicted, 1);
  EXPECT_EQ(head.reentered_ever, 1) << "entry 1 is the prompt's top";
  EXPECT_NEAR(head.mass(0, 0), 0.5, 1e-15);
  EXPECT_NEAR(head.mass(1, 0), 0.5, 1e-15) << "half of three is one";
  EXPECT_EQ(head.mass(2, 0), 1);
}

TEST(LayerPrediction, WeighsRelativeErrorsByTheScoresAndTakesTheMedianOfEntries) {
  // Raw scores (1, 1, 1, 1) are predicted; actual ones are 1, 1/2, 4, 8 for the prompt's entries
  // and 1 for the step's own.
  const auto heads =
      layer_prediction(power_layer({1, 0.5, 4, 8, 1}, {0, 1}, 4, 1), options(1, "tova", "1"), {2});
  const int64_t last = row(ScoreKind::raw, PredictionRule::last);
  EXPECT_NEAR(heads[0].relative_errors(last, 0), (0 + 0.5 + 3 + 7) / 13.5, 1e-14);
  // Entry errors 0, 1, 3/4 and 7/8: the median is between 3/4 and 7/8.
  EXPECT_NEAR(heads[0].entry_errors(last, 0), 13.0 / 16, 1e-14);
}

TEST(LayerPrediction, SeesWhoComesBackAtWhichStepAndWhoEver) {
  // Query 1 gives most attention to entry 2, query -1 to entry 0. The policy keeps entry 0 of
  // three; the top has one entry.
  const auto layer = power_layer({1, 2, 4, 1, 1, 1}, {1, 1, -1, 1}, 3, 3);
  const HeadPrediction head = layer_prediction(layer, options(3, "streaming-llm:sinks=1", "1"), {1})[0];
  EXPECT_EQ(head.evicted, 2);
  EXPECT_EQ(head.reentered, (Numbers{0.5, 0, 0.5}));
  EXPECT_EQ(head.reentered_ever, 0.5);
  const HeadPrediction both = layer_prediction(layer, options(3, "streaming-llm:sinks=1", "2"), {1})[0];
  EXPECT_EQ(both.reentered, (Numbers{1, 0.5, 1}));
  EXPECT_EQ(both.reentered_ever, 1);
}

TEST(LayerPrediction, SaysHowMuchScoresVaryWholeAndInAWindow) {
  const auto layer = power_layer({1, 3, 4, 8}, {1, -1, 1, 1}, 2, 2);
  PredictOptions of_two = options(2, "tova", "1");
  of_two.window = 2;
  const HeadPrediction head = layer_prediction(layer, of_two, {1})[0];
  ASSERT_EQ(head.whole_variances.size(), 2u);
  // Entry 0: 1, the only one that the first query sees, 3/4 and 1/8; at the second step 1/16, too.
  const double first = (1 + 9.0 / 16 + 1.0 / 64) / 3 - std::pow((1 + 0.75 + 0.125) / 3, 2);
  const double first_window = std::pow((0.75 - 0.125) / 2, 2);
  EXPECT_NEAR(head.whole_variances[0], first, 1e-15);
  EXPECT_NEAR(head.window_variances[0], first_window, 1e-15);
  EXPECT_NEAR(head.variance_ratios[0], first_window / first, 1e-14);
  // Entry 1: 1/4, 3/8, 3/16.
  const double second =
      (1 + 9.0 / 16 + 1.0 / 64 + 1.0 / 256) / 4 - std::pow((1 + 0.75 + 0.125 + 0.0625) / 4, 2);
  const double other = (1.0 / 16 + 9.0 / 64 + 9.0 / 256) / 3 - std::pow((0.25 + 0.375 + 0.1875) / 3, 2);
  const double second_window = std::pow(0.0625 / 2, 2), other_window = std::pow(0.1875 / 2, 2);
  EXPECT_NEAR(head.whole_variances[1], (second + other) / 2, 1e-15);
  EXPECT_NEAR(head.window_variances[1], (second_window + other_window) / 2, 1e-15);
  EXPECT_NEAR(head.variance_ratios[1], (second_window / second + other_window / other) / 2, 1e-14);
}

TEST(LayerPrediction, LetsTheSmallerPositionBeTheTopOfEquals) {
  const auto layer = power_layer({1, 1, 1, 1}, {1, 1}, 3, 1);
  EXPECT_EQ(layer_prediction(layer, options(1, "streaming-llm:sinks=1", "1"), {1})[0].reentered_ever, 0);
  EXPECT_EQ(layer_prediction(layer, options(1, "streaming-llm:sinks=1", "2"), {1})[0].reentered_ever, 0.5);
}

TEST(LayerPrediction, IsInfiniteWhereNoDoubleHoldsARatio) {
  // Raw scores e^1000 are predicted where the actual score is 1. As attention the predictions are 1/2 each;
  // logits of 1000 are rounded, and so is their log-sum-exp.
  const HeadPrediction head = layer_prediction(
      power_layer({std::exp(1.0), std::exp(1.0), 1}, {1000, 0}, 2, 1), options(1, "tova", "1"), {1})[0];
  EXPECT_EQ(head.relative_errors(row(ScoreKind::raw, PredictionRule::last), 0), INFINITY);
  EXPECT_EQ(head.entry_errors(row(ScoreKind::raw, PredictionRule::last), 0), INFINITY);
  EXPECT_NEAR(head.relative_errors(row(ScoreKind::attention, PredictionRule::last), 0), 0.5, 2000 * 0x1p-53)
      << "1/2 each where it is 1/3";
}

TEST(LayerPrediction, OfConstantRawScoresIsExactButAsPrinted) {
  // More queries than are processed at a time.
  const Numbers queries(80, 1);
  Numbers bases(50 + 60, 2);
  const HeadPrediction head =
      layer_prediction(power_layer(bases, queries, 50, 60), options(60, "tova", "5"), {10})[0];
  for (int64_t t = 0; t < 60; ++t) {
    for (const PredictionRule by :
         {PredictionRule::ema, PredictionRule::mean, PredictionRule::window_mean, PredictionRule::last}) {
      EXPECT_NEAR(head.relative_errors(row(ScoreKind::raw, by), t), 0, 1e-13) << name(by);
    }
    EXPECT_GT(head.relative_errors(row(ScoreKind::raw, PredictionRule::ema_paper), t), 1e-3);
  }
}

// Product kernels may treat the last rows differently, depending on the number of rows;
// Prescott's certainly do.
TEST(LayerPrediction, OfAStepDoesNotDependOnHowManyStepsAreMeasured) {
  constexpr int64_t kSteps = 70, kWindow = 8;
  const test::RandomLayer random({2, 1, 33, 4}, 300, kWindow, kSteps, 5);
  traces::Layer layer;
  layer.shape = random.shape;
  layer.prompt_tokens = random.tokens;
  layer.window_queries = kWindow;
  layer.scale = 0.2;
  layer.keys = random.all_keys;
  layer.values = random.all_values;
  layer.queries = random.all_queries;
  layer.output_projection = random.output_projection;
  const std::vector<int64_t> budgets(layer.shape.kv_heads, 60);
  for (const std::string& core : {reference::blas_info().core, std::string("Prescott")}) {
    const reference::ProductsOf kernels(core);
    const auto whole = layer_prediction(layer, options(kSteps, "tova", "20%"), budgets);
    for (const int64_t steps : {1, 2, 23, 24, 25, 40, 57, 69}) {
      const auto first = layer_prediction(layer, options(steps, "tova", "20%"), budgets);
      ASSERT_EQ(first.size(), whole.size());
      for (size_t h = 0; h < first.size(); ++h) {
        for (Matrix HeadPrediction::*const figures :
             {&HeadPrediction::relative_errors, &HeadPrediction::entry_errors, &HeadPrediction::mass}) {
          const Matrix &some = first[h].*figures, &all = whole[h].*figures;
          ASSERT_EQ(some.cols(), steps);
          for (int64_t i = 0; i < some.rows(); ++i) {
            for (int64_t t = 0; t < steps; ++t) {
              ASSERT_EQ(some(i, t), all(i, t)) << core << ", head " << h << ", step " << t << " of " << steps;
            }
          }
        }
        for (std::vector<double> HeadPrediction::*const figures :
             {&HeadPrediction::reentered, &HeadPrediction::whole_variances, &HeadPrediction::window_variances,
              &HeadPrediction::variance_ratios}) {
          const std::vector<double>&some = first[h].*figures, &all = whole[h].*figures;
          ASSERT_EQ(std::ssize(some), steps);
          for (size_t t = 0; t < some.size(); ++t) {
            EXPECT_TRUE(some[t] == all[t] || (std::isnan(some[t]) && std::isnan(all[t]))) << "step " << t;
          }
        }
      }
    }
  }
}

TEST(LayerPrediction, RethrowsWhatIsThrownWhereAHeadIsDoneOnAnyThread) {
  traces::Layer layer = power_layer({1, 3, 4}, {1, 1}, 2, 1);
  layer.shape.query_heads = 8;
  layer.queries = Tensor(8, 2, 1);
  layer.output_projection = Matrix(8, 1);
  for (const int threads : {1, 4}) {
    int64_t pieces = 0;
    const auto fails = [&] {
      ++pieces;
      throw IoError("piece");
    };
    EXPECT_EQ(message_of<IoError>([&] {
                test::with_threads(
                    threads, [&] { return layer_prediction(layer, options(1, "tova", "1"), {1}, fails); });
              }),
              "piece");
    EXPECT_EQ(pieces, 8) << "the others are measured all the same";
  }
}

TEST(LayerPrediction, TellsOfEveryHeadAndRefusesWhatCannotBeMeasured) {
  const traces::Layer layer = power_layer({1, 3, 4}, {1, 1}, 2, 1);
  int64_t pieces = 0;
  layer_prediction(layer, options(1, "tova", "1"), {1}, [&] { ++pieces; });
  EXPECT_EQ(pieces, 1);
  EXPECT_EQ(message_of<ShapeMismatch>([&] { layer_prediction(layer, options(2, "tova", "1"), {1}); }),
            "2 decode steps are to be predicted but 1 are recorded");
  EXPECT_EQ(message_of<ShapeMismatch>([&] { layer_prediction(layer, options(1, "tova", "3"), {1}); }),
            "3 of 2 entries are no top");
  PredictOptions wrong = options(1, "tova", "1");
  wrong.ema = 1;
  EXPECT_NE(message_of<ShapeMismatch>([&] { layer_prediction(layer, wrong, {1}); }), "no error");
  wrong = options(1, "tova", "1");
  wrong.window = 0;
  EXPECT_NE(message_of<ShapeMismatch>([&] { layer_prediction(layer, wrong, {1}); }), "no error");
}

}  // namespace
}  // namespace kvbound::sim::predict_test
