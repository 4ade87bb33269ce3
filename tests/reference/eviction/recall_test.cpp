#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/eviction/h2o.hpp>
#include <kvbound/reference/eviction/recall.hpp>
#include <kvbound/reference/eviction/removal.hpp>
#include <kvbound/sim/study/recall.hpp>

#include "support/trace_layer.hpp"

namespace kvbound::reference::recall_test {
namespace {

using test::column;
using test::message_of;
using test::Random;
using Indices = std::vector<int64_t>;
using Numbers = std::vector<double>;

constexpr double kUnit = 0x1p-53;

TEST(ShareFound, CountsWhatIsWantedAndFound) {
  EXPECT_EQ(share_found(Indices{1, 4, 7, 9}, Indices{0, 4, 9}), 0.5);
  EXPECT_EQ(share_found(Indices{2}, Indices{0, 1, 2, 3}), 1);
  EXPECT_EQ(share_found(Indices{2, 3}, Indices{}), 0);
}

TEST(ShareFound, OfNothingIsRefused) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { share_found(Indices{}, Indices{1}); }),
            "of 0 wanted entries no share can be found");
}

TEST(Recall, IsTheOverlapOfBothTops) {
  // the top 3 by score are 1, 3, 4; by true error 0, 3, 4
  EXPECT_EQ(recall(Numbers{1, 9, 2, 8, 7}, Numbers{5, 1, 0, 4, 6}, 3), 2.0 / 3);
  EXPECT_EQ(recall(Numbers{1, 9, 2, 8, 7}, Numbers{5, 1, 0, 4, 6}, 1), 0);
}

TEST(Recall, IsOneForTheTruthItselfAndForAllEntries) {
  EXPECT_EQ(recall(Numbers{3, 1, 2}, Numbers{30, 10, 20}, 2), 1);
  EXPECT_EQ(recall(Numbers{3, 1, 2}, Numbers{1, 2, 3}, 3), 1);
}

TEST(Recall, LetsTheSmallerIndexWinTiesOnBothSides) {
  EXPECT_EQ(recall(Numbers{0, 0, 0, 0}, Numbers{4, 3, 2, 1}, 2), 1) << "the first two by score";
  EXPECT_EQ(recall(Numbers{0, 0, 0, 0}, Numbers{1, 2, 3, 4}, 2), 0);
  EXPECT_EQ(recall(Numbers{1, 2, 3, 4}, Numbers{5, 5, 5, 5}, 2), 0) << "the first two by truth";
}

TEST(Recall, TakesInfinitiesForTheLargest) {
  EXPECT_EQ(recall(Numbers{kInfinity, 1, 2, 3}, Numbers{9, 1, 1, kInfinity}, 1), 0);
  EXPECT_EQ(recall(Numbers{kInfinity, 1, 2, 3}, Numbers{9, 1, 1, kInfinity}, 2), 1);
  EXPECT_EQ(recall(Numbers{1, kInfinity, kInfinity}, Numbers{kInfinity, kInfinity, 1}, 1), 0)
      << "infinities tie like any other number";
}

TEST(Recall, RefusesWhatHasNoTop) {
  EXPECT_EQ(message_of<ShapeMismatch>([] {
              recall(Numbers{1, 2}, Numbers{1}, 1);
            }),
            "scores is 2 but entries is 1");
  EXPECT_NE(message_of<ShapeMismatch>([] { recall(Numbers{1}, Numbers{1}, 0); }), "no error");
  EXPECT_NE(message_of<ShapeMismatch>([] { recall(Numbers{1}, Numbers{1}, 2); }), "no error");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(message_of<NonFinite>([&] { recall(Numbers{nan, 1}, Numbers{1, 2}, 1); }), "no error");
  EXPECT_NE(message_of<NonFinite>([&] { recall(Numbers{1, 2}, Numbers{nan, 1}, 1); }), "no error");
}

TEST(EvictionErrors, OfAHandMadeStepAreThoseOfPaper) {
  // Weights 1/4, 1/2, 1/4, values 4, 2, 1: o = 9/4. Without entry 0 o is 5/3, without entry 1 5/2.
  const Matrix errors = eviction_errors({1, 1, 1, 1}, 1, column({0, std::log(2.0), 0}), column({4, 2, 1}),
                                        test::matrix({{1}}), 2);
  ASSERT_EQ(errors.rows(), 1);
  ASSERT_EQ(errors.cols(), 2) << "the step's own entry is no prompt entry";
  EXPECT_NEAR(errors(0, 0), 49.0 / 144, 64 * kUnit);
  EXPECT_NEAR(errors(0, 1), 1.0 / 16, 64 * kUnit);
}

TEST(EvictionErrors, KeepTheirPrecisionWhereOneEntryHoldsNearlyEverything) {
  // Entry 0 has weight 1 - 2 e^-60: without it the output is the mean of the others, 2.
  const Matrix errors =
      eviction_errors({1, 1, 1, 1}, 1, column({60, 0, 0}), column({5, 1, 3}), test::matrix({{1}}), 2);
  EXPECT_NEAR(errors(0, 0), 9, 256 * kUnit);
  // The log-sum-exp of 60 is off by up to 60 u, which is the relative error of a weight;
  // the weight is squared here.
  EXPECT_NEAR(errors(0, 1) / (16 * std::exp(-120.0)), 1, 4 * 60 * kUnit);
}

TEST(EvictionErrors, OfThePromptsOnlyEntryAreNotInfiniteSinceTheStepsOwnStays) {
  const Matrix errors =
      eviction_errors({1, 1, 1, 1}, 1, column({800, 0}), column({5, 1}), test::matrix({{1}}), 1);
  EXPECT_EQ(errors(0, 0), 16);
}

TEST(EvictionErrors, AreWhatRemovalDoesToEveryQueryHead) {
  Random random(11);
  const LayerShape shape{6, 2, 5, 7};
  const int64_t prompt = 37, entries = 41;
  const double scale = 0.75;
  const Tensor keys = random.tensor(2, entries, 5), values = random.tensor(2, entries, 5);
  const Matrix queries = random.matrix(6, 5);
  const Matrix errors = eviction_errors(shape, scale, keys, values, queries, prompt);
  for (int64_t h = 0; h < 6; ++h) {
    const int64_t g = h / 3;
    const Matrix logits = attention_logits(queries.view().middle_rows(h, 1), keys.slice(g), scale);
    const Matrix weights = attention_weights(queries.view().middle_rows(h, 1), keys.slice(g), scale, entries);
    // Logits are off by at most d, so weights by a factor of e^(2 d) and their own roundings, and 1 - A by as
    // much relative to 1 - A. The components of a change are sums of at most |v| + |o| <= 2 max |v|, which
    // the expanded square may lose by cancellation.
    double largest_logit = 0, largest_value = 0;
    for (int64_t j = 0; j < entries; ++j) {
      double sum = 0, norm = 0;
      for (int64_t c = 0; c < 5; ++c) {
        sum += std::abs(queries(h, c) * keys.slice(g)(j, c));
        norm += values.slice(g)(j, c) * values.slice(g)(j, c);
      }
      largest_logit = std::max(largest_logit, scale * sum);
      largest_value = std::max(largest_value, std::sqrt(norm));
    }
    const double weight_error = 4 * (8 * kUnit * largest_logit) + static_cast<double>(entries + 16) * kUnit;
    for (int64_t j = 0; j < prompt; ++j) {
      const Numbers change = removal_change(logits.row(0), values.slice(g), Indices{j});
      double expected = 0;
      for (const double x : change) expected += x * x;
      const double odds = weights(0, j) / (1 - weights(0, j));
      const double terms = odds * odds * 4 * largest_value * largest_value;
      const double relative = 4 * (weight_error / (1 - weights(0, j)) + 16 * kUnit);
      EXPECT_NEAR(errors(h, j), expected, relative * terms) << "head " << h << ", entry " << j;
      EXPECT_GT(errors(h, j), relative * terms) << "zero would do, too";
    }
  }
}

TEST(EvictionErrors, OfNoPromptAreEmptyAndShapesThatDoNotFitAreRefused) {
  const Tensor one = column({1});
  const Matrix query = test::matrix({{1}});
  EXPECT_EQ(eviction_errors({1, 1, 1, 1}, 1, one, one, query, 0).cols(), 0);
  EXPECT_EQ(message_of<ShapeMismatch>([&] {
              eviction_errors({1, 1, 1, 1}, 1, one, one, query, 2);
            }),
            "a prompt of 2 tokens in a cache of 1 entries");
  EXPECT_EQ(message_of<ShapeMismatch>([&] {
              eviction_errors({2, 1, 1, 1}, 1, one, one, query, 1);
            }),
            "rows of queries is 1 but query heads is 2");
  EXPECT_EQ(message_of<ShapeMismatch>([&] {
              eviction_errors({1, 1, 1, 1}, 1, one, column({1, 2}), query, 1);
            }),
            "rows of keys is 1 but rows of values is 2");
}

}  // namespace
}  // namespace kvbound::reference::recall_test

namespace kvbound::sim {
namespace {

using test::message_of;

// Two KV heads with two query heads each, 30 prompt tokens, `steps` decode steps.
traces::Layer random_layer(uint64_t seed, int64_t steps = 3) {
  return test::random_trace_layer({4, 2, 5, 7}, 0.75, 30, 9, steps, seed);
}

TEST(LayerRecall, HasEveryScoreWithEveryWindowAndAllHeads) {
  const auto scores = layer_recall(random_layer(1), {5, 4, {3, 1, 9}});
  ASSERT_EQ(scores.size(), 18u);
  EXPECT_EQ(scores[0].score, "attention");
  EXPECT_EQ(scores[17].score, "eq-1");
  for (size_t s = 0; s < scores.size(); ++s) {
    EXPECT_EQ(scores[s].window, (std::vector<int64_t>{3, 1, 9})[s % 3]) << "in the order asked for";
    EXPECT_EQ(scores[s].heads.size(), 4u);
  }
}

TEST(LayerRecall, IsOneForEverything) {
  for (const ScoreRecall& recall : layer_recall(random_layer(2), {30, 0, {1, 9}})) {
    for (const RecallFigures& head : recall.heads) {
      EXPECT_EQ(head.first_step, 1);
      EXPECT_EQ(head.mean_step_recent, 1);
    }
  }
}

TEST(LayerRecall, OfOneStepIsThatOfAllSteps) {
  for (const ScoreRecall& recall : layer_recall(random_layer(3, 1), {5, 4, {1, 9}})) {
    for (const RecallFigures& head : recall.heads) {
      EXPECT_EQ(head.first_step, head.mean_step);
      EXPECT_EQ(head.first_step_recent, head.mean_step_recent);
    }
  }
}

TEST(LayerRecall, WithoutARecentWindowIsTheSameEitherWay) {
  for (const ScoreRecall& recall : layer_recall(random_layer(4), {7, 0, {2, 9}})) {
    for (const RecallFigures& head : recall.heads) {
      EXPECT_EQ(head.first_step, head.first_step_recent);
      EXPECT_EQ(head.mean_step, head.mean_step_recent);
    }
  }
}

TEST(LayerRecall, OfAttentionIsThatOfTheDefinition) {
  const traces::Layer layer = random_layer(5);
  const int64_t k = 6, recent = 5;
  Matrix sum(4, 30);
  for (int64_t t = 0; t < 3; ++t) {
    const Matrix errors =
        reference::eviction_errors(layer.shape, layer.scale, layer.keys.view().middle_rows(0, 31 + t),
                                   layer.values.view().middle_rows(0, 31 + t), layer.step(t).queries, 30);
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t j = 0; j < 30; ++j) sum(h, j) += errors(h, j);
    }
  }
  const Matrix attention = reference::accumulated_attention(layer.prompt(), 4);
  const ScoreRecall recall = layer_recall(layer, {k, recent, {4}}).front();
  for (int64_t h = 0; h < 4; ++h) {
    const RecallFigures& head = recall.heads[h];
    EXPECT_EQ(head.mean_step, reference::recall(attention.row(h), sum.row(h), k));
    EXPECT_EQ(head.mean_step_recent, reference::recall(attention.row(h).first(25), sum.row(h).first(25), k));
  }
}

TEST(LayerRecall, RefusesWhatCannotBeMeasured) {
  EXPECT_EQ(message_of<ShapeMismatch>([] {
              layer_recall(random_layer(6, 0), {1, 0, {1}});
            }),
            "there is no decode step to know the eviction errors from");
  EXPECT_EQ(message_of<ShapeMismatch>([] {
              layer_recall(random_layer(6), {27, 4, {1}});
            }),
            "30 entries, the newest 4 excepted, have no top 27");
  EXPECT_NE(message_of<ShapeMismatch>([] { layer_recall(random_layer(6), {0, 4, {1}}); }), "no error");
  EXPECT_NE(message_of<ShapeMismatch>([] { layer_recall(random_layer(6), {1, 30, {1}}); }), "no error");
  EXPECT_NE(message_of<ShapeMismatch>([] { layer_recall(random_layer(6), {1, 0, {10}}); }), "no error");
}

TEST(LayerRecall, TellsOfEveryPiece) {
  int64_t pieces = 0;
  const RecallOptions options{5, 4, {1, 2}};
  layer_recall(random_layer(7), options, [&] { ++pieces; });
  EXPECT_EQ(pieces, recall_pieces(options));
}

}  // namespace
}  // namespace kvbound::sim
