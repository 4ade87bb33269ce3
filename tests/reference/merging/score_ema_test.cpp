#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/score_ema.hpp>

#include "support/oracle.hpp"
#include "support/power_layer.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference::score_ema_test {
namespace {

using namespace test;
using oracle::Bounded;
using oracle::Real;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

PredictedScores options(double ema, Normalisation normalisation = Normalisation::exact,
                        ScoreKind scores = ScoreKind::attention) {
  return {Prediction::ema, ema, scores, normalisation};
}

ScoreEma with_entries(const PredictedScores& prediction, int64_t heads, int64_t entries) {
  ScoreEma ema(prediction, heads);
  for (int64_t j = 0; j < entries; ++j) ema.append();
  return ema;
}

// The average of one head and one entry after these scores (not their logarithms).
ScoreEma after(const PredictedScores& prediction, const std::vector<double>& scores) {
  ScoreEma ema = with_entries(prediction, 1, 1);
  for (const double score : scores) ema.observe(matrix({{std::log(score)}}));
  return ema;
}

double predicted(const ScoreEma& ema, int64_t tokens = 1) {
  return std::exp(ema.log_predicted(0, 0, tokens));
}

TEST(ScoreEma, WeighsTheLastScoreByOneMinusEma) {
  // S = (1/2)(1/2) 1 + (1/2) 3 = 7/4, c = (1/2)(1/2) + 1/2 = 3/4.
  EXPECT_NEAR(predicted(after(options(0.5), {1, 3})), 7.0 / 3, 1e-15);
  // Divided by 1 - (1/2)^3 = 7/8 instead.
  EXPECT_NEAR(predicted(after(options(0.5, Normalisation::paper), {1, 3}), 3), 2, 1e-15);
}

TEST(ScoreEma, OfAConstantIsThatConstantExactlyNormalisedAndLessAsPrinted) {
  const std::vector<double> constant(9, 2.0);
  EXPECT_NEAR(predicted(after(options(0.9), constant), 40), 2, 1e-14);
  // 2 (1 - 0.9^9) / (1 - 0.9^40) = 2 * 0.612579511 / 0.985219...
  EXPECT_NEAR(predicted(after(options(0.9, Normalisation::paper), constant), 40), 1.2435, 5e-5);
}

TEST(ScoreEma, WithoutAPastIsTheLastScoreItself) {
  ScoreEma ema = with_entries(options(0), 1, 2);
  ema.observe(matrix({{3.25, 1e4}}));
  ema.observe(matrix({{-1e4, 0.1}}));
  EXPECT_EQ(ema.log_predicted(0, 0, 7), -1e4);
  EXPECT_EQ(ema.log_predicted(0, 1, 7), 0.1);
  ScoreEma paper = with_entries(options(0, Normalisation::paper), 1, 1);
  paper.observe(matrix({{-0.75}}));
  EXPECT_EQ(paper.log_predicted(0, 0, 7), -0.75) << "1 - 0^7 is 1";
}

TEST(ScoreEma, IsNothingForAnEntryThatNoQueryHasSeen) {
  for (const Normalisation normalisation : {Normalisation::exact, Normalisation::paper}) {
    ScoreEma ema = with_entries(options(0.9, normalisation), 1, 2);
    ema.observe(matrix({{-0.5}}));
    EXPECT_TRUE(std::isfinite(ema.log_predicted(0, 0, 2)));
    EXPECT_EQ(ema.log_predicted(0, 1, 2), kNothing);
  }
}

TEST(ScoreEma, ForgetsNoEntrysOwnWeightWhereOthersCameLater) {
  // The second entry is seen once: its average is its only score, whatever the first entry's history.
  ScoreEma ema = with_entries(options(0.9), 1, 1);
  ema.observe(matrix({{0}}));
  ema.append();
  ema.observe(matrix({{0, -3}}));
  EXPECT_NEAR(ema.log_predicted(0, 0, 2), 0, 1e-15);
  EXPECT_NEAR(ema.log_predicted(0, 1, 2), -3, 1e-15);
}

TEST(ScoreEma, KeepsQueryHeadsApart) {
  ScoreEma ema = with_entries(options(0.5), 2, 1);
  ema.observe(matrix({{0}, {100}}));
  EXPECT_NEAR(ema.log_predicted(0, 0, 1), 0, 1e-15);
  EXPECT_NEAR(ema.log_predicted(1, 0, 1), 100, 1e-13);
  const Matrix all = ema.log_predicted(1);
  EXPECT_EQ(all.rows(), 2);
  EXPECT_EQ(all(1, 0), ema.log_predicted(1, 0, 1));
}

TEST(ScoreEma, PutsTheLastEntryWhereOneLeft) {
  ScoreEma ema = with_entries(options(0.9), 1, 3);
  ema.observe(matrix({{-1, -2}}));
  ema.observe(matrix({{-1, -2, -3}}));
  const double last = ema.log_predicted(0, 2, 5);
  ema.remove(0);
  EXPECT_EQ(ema.entries(), 2);
  EXPECT_EQ(ema.log_predicted(0, 0, 5), last);
  ema.remove(1);
  EXPECT_EQ(ema.entries(), 1);
  EXPECT_EQ(ema.log_predicted(0, 0, 5), last);
}

TEST(ScoreEma, LetsAMergedEntryGoOnWithItsScoreAndTheWeightOfTheOneThatStayed) {
  // c = 1/2 after one query; replaced by s^ = 8: S = 4. Then a score of 2: S = 2 + 1, c = 3/4.
  ScoreEma ema = after(options(0.5), {1});
  ema.replace(0, std::vector{std::log(8.0)}, 1);
  EXPECT_NEAR(predicted(ema), 8, 1e-14);
  ema.observe(matrix({{std::log(2.0)}}));
  EXPECT_NEAR(predicted(ema), 4, 1e-14);
  // As printed: S = 8 (1 - (1/2)^2) = 6, then 3 + 1, divided by 1 - (1/2)^3 = 7/8.
  ScoreEma paper = after(options(0.5, Normalisation::paper), {1});
  paper.replace(0, std::vector{std::log(8.0)}, 2);
  EXPECT_NEAR(predicted(paper, 2), 8, 1e-14);
  paper.observe(matrix({{std::log(2.0)}}));
  EXPECT_NEAR(predicted(paper, 3), 32.0 / 7, 1e-14);
}

TEST(ScoreEma, NamesWhatDoesNotFit) {
  ScoreEma ema = with_entries(options(0.9), 2, 3);
  EXPECT_EQ(message_of<ShapeMismatch>([&] {
              ema.observe(matrix({{0, 0, 0, 0}, {0, 0, 0, 0}}));
            }),
            "columns of log_scores is 4 but entries is 3");
  EXPECT_EQ(message_of<ShapeMismatch>([&] { ema.observe(matrix({{0}})); }),
            "rows of log_scores is 1 but query heads is 2");
  EXPECT_EQ(message_of<NonFinite>([&] { ema.observe(matrix({{0, NAN}, {0, 0}})); }), "log_scores[1] is nan");
  EXPECT_EQ(message_of<NonFinite>([&] {
              ema.observe(matrix({{0, 0}, {0, -INFINITY}}));
            }),
            "log_scores[1] is -inf");
  EXPECT_THROW(ema.replace(0, std::vector<double>{0, NAN}, 1), NonFinite);
}

// ln of sum_k (1 - a) a^(L-1-k) s_k, divided by sum_k (1 - a) a^(L-1-k) or 1 - a^tokens, with the error bound
// of ScoreEma's evaluation. An update is off by 5 roundings of the larger term and of the exponential, and by
// the rounding of the exponential's argument, which is below 746 and is at most the scores' spread plus the
// distance of a mantissa (>= 2^-64: 45) from 1. Moving a mantissa into the exponent takes two roundings of
// the sum of both. c is off by 3 roundings per query, the rest by a few of the logarithms: 4 of tokens ln a,
// the exponential and the difference, 2 of each logarithm, 1 of each sum.
Bounded log_ema(const oracle::Row& log_scores, const PredictedScores& prediction, int64_t tokens) {
  const Real a = prediction.ema, u = oracle::unit_roundoff();
  const auto queries = std::ssize(log_scores);
  Real largest = log_scores[0].value, least = largest, carried = 0;
  for (const Bounded& score : log_scores) {
    largest = std::max(largest, score.value);
    least = std::min(least, score.value);
    carried = std::max(carried, score.bound);
  }
  Real sum = 0, weight = 0;
  for (const Bounded& score : log_scores) {
    sum = a * sum + (1 - a) * exp(score.value - largest);
    weight = a * weight + (1 - a);
  }
  if (prediction.normalisation == Normalisation::paper) weight = 1 - pow(a, tokens);
  const Real size = abs(largest) + abs(least) + 64;
  const Real argument = std::min(Real(746), Real(largest - least + 46));
  const Real updates = queries * (5 + argument) * u;
  // A mantissa falls from at least 1 - a to 2^-64, by a factor of at least a per query.
  const Real decays = (Real(64) * log(Real(2)) + log(1 - a)) / -log(a);
  const Real moves = floor(queries / std::max(Real(1), decays)) * 2 * size * u;
  const Real value = largest + log(sum) - log(weight);
  const Real logarithms = 2 * u * (abs(log(weight)) + 46) + 2 * u * (size + abs(value));
  // 1 % more covers products of errors, all of which are below 1e-9.
  return {value, (carried + updates + moves + 3 * queries * u + 4 * u + logarithms) * Real("1.01")};
}

struct EmaCase {
  double ema;
  int queries;
  double size;  // of the scores' logarithms
};

TEST(ScoreEmaOracle, HoldsForLogitsOfAnySize) {
  for (const EmaCase& one : {EmaCase{0.9, 64, 5},
                             {0.9, 450, 30},
                             {0.5, 300, 1},
                             {0.1, 200, 40},
                             {1e-9, 50, 10},
                             {1e-36, 10, 100},
                             {0.999999, 100, 3},
                             {0.9, 40, 1e4},
                             {0.3, 200, 1e4}}) {
    Random random(7);
    constexpr int64_t kEntries = 11;  // at least one whole vector of any width, and a remainder
    const Matrix log_scores = random.matrix(one.queries, kEntries, one.size);
    for (const Normalisation normalisation : {Normalisation::exact, Normalisation::paper}) {
      const PredictedScores prediction = options(one.ema, normalisation);
      ScoreEma ema = with_entries(prediction, 1, kEntries);
      for (int64_t i = 0; i < one.queries; ++i) ema.observe(log_scores.view().middle_rows(i, 1));
      for (int64_t j = 0; j < kEntries; ++j) {
        oracle::Row scores;
        for (int64_t i = 0; i < one.queries; ++i) scores.emplace_back(log_scores(i, j));
        EXPECT_TRUE(oracle::within(ema.log_predicted(0, j, one.queries + 3),
                                   log_ema(scores, prediction, one.queries + 3)))
            << one.ema << " " << one.queries << " " << one.size << " entry " << j;
      }
    }
  }
}

TEST(ScoreEmaOracle, RemembersAScoreThatDecaysFarBelowTheLeastNumber) {
  // 0.5^3000 = 1e-903, yet the first score, 1, dominates all later ones of exp(-1e4).
  ScoreEma ema = with_entries(options(0.5), 1, 1);
  oracle::Row scores{0.0};
  ema.observe(matrix({{0}}));
  for (int i = 0; i < 3000; ++i) {
    ema.observe(matrix({{-1e4}}));
    scores.emplace_back(-1e4);
  }
  const Bounded expected = log_ema(scores, options(0.5), 1);
  EXPECT_NEAR(static_cast<double>(expected.value), -3001 * std::log(2.0), 1e-9);
  EXPECT_TRUE(oracle::within(ema.log_predicted(0, 0, 1), expected));
}

TEST(LogScores, OfAttentionAddUpToOneWithTheirVotes) {
  // exp(z) = 1, 2, 4 with 3, 1, 2 votes: a sum of 13.
  const std::vector<double> logits{0, std::log(2.0), std::log(4.0)};
  const std::vector<double> with_votes = log_scores(ScoreKind::attention, logits, std::vector{3.0, 1.0, 2.0});
  for (size_t j = 0; j < 3; ++j) EXPECT_NEAR(with_votes[j], logits[j] - std::log(13.0), 1e-15);
  const std::vector<double> alone = log_scores(ScoreKind::attention, logits);
  for (size_t j = 0; j < 3; ++j) EXPECT_NEAR(alone[j], logits[j] - std::log(7.0), 1e-15);
}

TEST(LogScores, RawAreTheLogits) {
  const std::vector<double> logits{-1e4, 0, 3, 1e4};
  EXPECT_EQ(log_scores(ScoreKind::raw, logits), logits);
  EXPECT_EQ(log_scores(ScoreKind::raw, logits, std::vector{5.0, 6.0, 7.0, 8.0}), logits);
}

TEST(LogScores, NeitherOverflowNorVanish) {
  EXPECT_EQ(log_scores(ScoreKind::attention, std::vector{1e4, -1e4}), (std::vector{0.0, -2e4}));
  EXPECT_TRUE(log_scores(ScoreKind::attention, {}).empty());
}

TEST(LogScores, NameWhatDoesNotFit) {
  EXPECT_EQ(message_of<ShapeMismatch>([] {
              log_scores(ScoreKind::attention, std::vector{1.0, 2.0}, std::vector{1.0});
            }),
            "votes is 1 but logits is 2");
  EXPECT_THROW(log_scores(ScoreKind::attention, std::vector<double>{1, NAN}), NonFinite);
}

TEST(ObserveLogits, IsObservingTheirScores) {
  const Matrix logits = Random(3).matrix(2, 5, 4);
  const std::vector<double> votes{1, 2, 1, 7, 3};
  for (const ScoreKind kind : {ScoreKind::attention, ScoreKind::raw}) {
    ScoreEma by_logits = with_entries(options(0.9, {}, kind), 2, 5), by_scores = by_logits;
    Matrix scores(2, 5);
    for (int64_t h = 0; h < 2; ++h) {
      std::ranges::copy(log_scores(kind, logits.row(h), votes), scores.row(h).begin());
    }
    by_logits.observe_logits(logits, votes);
    by_scores.observe(scores);
    EXPECT_TRUE(
        std::ranges::equal(by_logits.log_predicted(9).numbers(), by_scores.log_predicted(9).numbers()));
  }
}

TEST(PromptEma, IsOverTheQueriesThatSeeAnEntry) {
  // Bases (1, 3, 4), two queries of 1, whose weights are proportional to the bases:
  // (1/4, 3/4) and (1, 3, 4)/8.
  const PowerLayer layer({1, 3, 4}, {0, 0, 0}, {{1, 1}}, 3);
  const ScoreEma ema = prompt_ema(layer.view(), 0, options(0.5));
  ASSERT_EQ(ema.entries(), 3);
  // (1/4 s_0 + 1/2 s_1) / (3/4); the last entry is seen once.
  EXPECT_NEAR(std::exp(ema.log_predicted(0, 0, 3)), (0.25 / 4 + 0.5 / 8) / 0.75, 1e-15);
  EXPECT_NEAR(std::exp(ema.log_predicted(0, 1, 3)), (0.75 / 4 + 1.5 / 8) / 0.75, 1e-15);
  EXPECT_NEAR(std::exp(ema.log_predicted(0, 2, 3)), 0.5, 1e-15);
  const ScoreEma raw = prompt_ema(layer.view(), 0, options(0.5, Normalisation::paper, ScoreKind::raw));
  EXPECT_NEAR(std::exp(raw.log_predicted(0, 1, 3)), (0.25 * 3 + 0.5 * 3) / 0.875, 1e-14);
  EXPECT_NEAR(std::exp(raw.log_predicted(0, 2, 3)), 0.5 * 4 / 0.875, 1e-14);
}

TEST(PromptEma, GoesOnWithTheStepsQueries) {
  const PowerLayer layer({1, 3, 4}, {0, 0, 0}, {{1, 1}}, 3);
  ScoreEma ema = prompt_ema(layer.view(), 0, options(0.5));
  ema.append();
  ema.observe(matrix({{std::log(0.25), std::log(0.25), std::log(0.25), std::log(0.25)}}));
  EXPECT_NEAR(std::exp(ema.log_predicted(0, 0, 4)), (0.125 / 4 + 0.25 / 8 + 0.5 / 4) / 0.875, 1e-15);
  EXPECT_NEAR(std::exp(ema.log_predicted(0, 3, 4)), 0.25, 1e-15);
}

// The log scores of one query head's entry by all queries that see it.
oracle::Row log_scores_of(const LayerView& layer, int64_t head, int64_t entry, ScoreKind kind) {
  const oracle::Rows logits =
      oracle::logits(layer.queries.slice(head), layer.keys.slice(layer.shape.kv_head_of(head)), layer.scale);
  oracle::Row scores;
  for (int64_t i = 0; i < layer.window_queries(); ++i) {
    const int64_t position = layer.prompt_tokens() - layer.window_queries() + i;
    if (position < entry) continue;
    const oracle::Row& all = logits[i];
    const oracle::Row seen(all.begin(), all.begin() + position + 1);
    const Bounded& logit = seen[entry];
    scores.push_back(kind == ScoreKind::raw ? logit : logit - oracle::log_sum_exp(seen));
  }
  return scores;
}

TEST(PromptEmaOracle, HoldsForEveryHeadAndKind) {
  // Groups with more heads, and windows with more queries, than are processed at a time.
  const RandomLayer random({10, 2, 5, 3}, 45, 37, 0, 11);
  const LayerView layer = random.view();
  for (const ScoreKind kind : {ScoreKind::attention, ScoreKind::raw}) {
    for (const Normalisation normalisation : {Normalisation::exact, Normalisation::paper}) {
      const PredictedScores prediction = options(0.9, normalisation, kind);
      const ScoreEma ema = prompt_ema(layer, 1, prediction);
      ASSERT_EQ(ema.heads(), 5);
      for (int64_t h = 0; h < 5; ++h) {
        for (const int64_t entry : {0, 7, 8, 9, 30, 44}) {
          EXPECT_TRUE(oracle::within(ema.log_predicted(h, entry, 45),
                                     log_ema(log_scores_of(layer, 5 + h, entry, kind), prediction, 45)))
              << h << " " << entry;
        }
      }
    }
  }
}

TEST(PromptEma, RefusesNonNumbersAndAPromptWithoutQueries) {
  const PowerLayer layer({1, INFINITY, 1}, {0, 0, 0}, {{1, 1, 1}}, 3);
  EXPECT_THROW(prompt_ema(layer.view(), 0, options(0.9)), NonFinite);
  const PowerLayer without({1, 1, 1}, {0, 0, 0}, {{1}}, 2);
  EXPECT_THROW(prompt_ema(without.view(), 0, options(0.9)), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::reference::score_ema_test
