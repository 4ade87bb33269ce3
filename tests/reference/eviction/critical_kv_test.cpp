#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/perturbation.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference::critical_kv_test {
namespace {

using oracle::all_within;
using test::matrix;
using test::message_of;
using test::Random;
using Positions = std::vector<int64_t>;

TEST(ProjectedValueNorms, AreNormsAfterTheProjection) {
  // (1, -2) W = (1*1 - 2*2, 1*0 - 2*(-2)) = (-3, 4): L1 7, L2 5. (0, 1) W = (2, -2): 4 and sqrt 8.
  const Matrix values = matrix({{1, -2}, {0, 1}}), projection = matrix({{1, 0}, {2, -2}});
  EXPECT_EQ(projected_value_norms(values, projection, Norm::l1), (std::vector<double>{7, 4}));
  EXPECT_EQ(projected_value_norms(values, projection, Norm::l2), (std::vector<double>{5, std::sqrt(8.0)}));
}

TEST(ProjectedValueNorms, AreZeroForZeroValues) {
  EXPECT_EQ(projected_value_norms(Matrix(2, 3), matrix({{1, 2}, {3, 4}, {5, 6}}), Norm::l1),
            (std::vector<double>{0, 0}));
}

TEST(ProjectedValueNorms, AreEmptyForNoTokensAndZeroForNoModel) {
  EXPECT_TRUE(projected_value_norms(Matrix(0, 3), Matrix(3, 2), Norm::l1).empty());
  EXPECT_EQ(projected_value_norms(matrix({{1, 2}}), Matrix(2, 0), Norm::l2), std::vector<double>{0});
}

TEST(ProjectedValueNorms, NameWhatDoesNotFit) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { projected_value_norms(Matrix(2, 64), Matrix(128, 3), Norm::l1); }),
            "columns of values is 64 but rows of output_projection is 128");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(message_of<NonFinite>([&] {
              projected_value_norms(matrix({{1}, {infinity}}), matrix({{1}}), Norm::l1);
            }),
            "projected_value_norms[1] is inf");
  EXPECT_THROW(projected_value_norms(matrix({{1e200}}), matrix({{1}}), Norm::l2), NonFinite) << "overflow";
  const LayerShape shape{2, 1, 3, 4};
  const auto refused = [&](const Tensor& values, const Matrix& projection) {
    return message_of<ShapeMismatch>([&] { projected_value_norms(shape, values, projection, Norm::l1); });
  };
  EXPECT_EQ(refused(Tensor(2, 5, 3), Matrix(6, 4)), "slices of values is 2 but kv_heads is 1");
  EXPECT_EQ(refused(Tensor(1, 5, 3), Matrix(5, 4)),
            "rows of output_projection is 5 but query_heads * head_dim is 6");
  EXPECT_EQ(refused(Tensor(1, 5, 2), Matrix(6, 4)), "columns of values is 2 but head_dim is 3");
}

TEST(ProjectedValueNorms, AreBitEqualForEqualValuesWhereverTheyStand) {
  Random random(1);
  for (const int64_t head_dim : {1, 7, 8, 64, 128}) {
    Matrix values = random.matrix(1000, head_dim);
    const std::vector<int64_t> places{0, 1, 3, 30, 100, 254, 255, 256, 511, 700, 999};
    for (const int64_t place : places) std::ranges::copy(values.row(0), values.row(place).begin());
    for (const int64_t model_dim : {1, 5, 64, 257, 300}) {
      const Matrix projection = random.matrix(head_dim, model_dim);
      for (const Norm norm : {Norm::l1, Norm::l2}) {
        for (const int64_t tokens : {1, 31, 255, 256, 257, 1000}) {
          const auto norms = projected_value_norms(values.view().middle_rows(0, tokens), projection, norm);
          for (const int64_t place : places) {
            if (place >= tokens) continue;
            ASSERT_EQ(norms[place], norms[0]) << head_dim << " " << model_dim << " " << place;
          }
        }
      }
    }
  }
}

TEST(ProjectedValueNorms, OfATokenDoNotDependOnThoseThatFollow) {
  Random random(2);
  const Matrix values = random.matrix(257, 9), projection = random.matrix(9, 30);
  const std::vector<double> all = projected_value_norms(values, projection, Norm::l1);
  for (const int64_t tokens : {1, 255, 256}) {
    const auto last =
        projected_value_norms(values.view().middle_rows(257 - tokens, tokens), projection, Norm::l1);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), all.end() - tokens)) << tokens;
  }
}

TEST(ProjectedValueNorms, OfALayerAreThoseOfItsHeads) {
  Random random(3);
  const LayerShape shape{4, 2, 3, 5};
  const Tensor values = random.tensor(2, 300, 3);
  const Matrix projection = random.matrix(12, 5);
  for (const Norm norm : {Norm::l1, Norm::l2}) {
    const Matrix norms = projected_value_norms(shape, values, projection, norm);
    ASSERT_EQ(norms.rows(), 4);
    for (int64_t h = 0; h < 4; ++h) {
      const auto head =
          projected_value_norms(values.slice(h / 2), projection.view().middle_rows(3 * h, 3), norm);
      EXPECT_TRUE(std::ranges::equal(norms.row(h), head));
    }
  }
  EXPECT_EQ(projected_value_norms(shape, Tensor(2, 0, 3), projection, Norm::l1).cols(), 0);
}

// Each projected number is off by gamma_{head_dim} sum |v W|, and the sum of their absolute
// values by gamma_{model_dim
// - 1} more. For L2 squaring doubles the relative error of the projected numbers, and the
//   square root halves it again.
TEST(ProjectedValueNormsOracle, IsMetWithinTheDerivedBounds) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const int64_t head_dim = 1 + random.index(12);
    const Matrix values =
        random.matrix(1 + random.index(9), head_dim, std::ldexp(1, static_cast<int>(seed) - 10));
    const Matrix projection = random.matrix(head_dim, seed == 7 ? 259 : 1 + random.index(20));
    for (const Norm norm : {Norm::l1, Norm::l2}) {
      EXPECT_TRUE(all_within(projected_value_norms(values, projection, norm),
                             oracle::projected_value_norms(values, projection, norm)));
    }
  }
}

TEST(StageTwoScores, AreMeansOfProductsOrProductsOfMeans) {
  // Entry 0: heads (a, N) = (1, 2), (3, 6); epsilon 1.
  //   mean of products: ((1+1)*2 + (3+1)*6)/2 = 14;  product of means: ((1+3)/2 + 1) * (2+6)/2 = 12.
  // Entry 1: (0, 4), (0, 0): ((0+1)*4 + (0+1)*0)/2 = 2;  (0 + 1) * 2 = 2.
  const Matrix scores = matrix({{1, 0}, {3, 0}}), norms = matrix({{2, 4}, {6, 0}});
  EXPECT_EQ(stage_two_scores(scores, norms, 1, GqaProduct::mean_of_products), (std::vector<double>{14, 2}));
  EXPECT_EQ(stage_two_scores(scores, norms, 1, GqaProduct::product_of_means), (std::vector<double>{12, 2}));
  EXPECT_TRUE(stage_two_scores(Matrix(2, 0), Matrix(2, 0), 1, GqaProduct::mean_of_products).empty());
}

TEST(StageTwoScores, OfOneHeadAreTheSameEitherWay) {
  const Matrix scores = matrix({{0.3, 0.1}}), norms = matrix({{2.7, 1.9}});
  EXPECT_EQ(stage_two_scores(scores, norms, 1e-4, GqaProduct::mean_of_products),
            stage_two_scores(scores, norms, 1e-4, GqaProduct::product_of_means));
}

TEST(StageTwoScores, NameWhatDoesNotFit) {
  const auto refused = [](const Matrix& scores, const Matrix& norms) {
    return message_of<ShapeMismatch>(
        [&] { stage_two_scores(scores, norms, 0, GqaProduct::mean_of_products); });
  };
  EXPECT_EQ(refused(Matrix(2, 3), Matrix(4, 3)),
            "query heads of the scores is 2 but query heads of the norms is 4");
  EXPECT_EQ(refused(Matrix(2, 3), Matrix(2, 5)), "entries of the scores is 3 but entries of the norms is 5");
}

// Every term undergoes the addition of epsilon, a product, group_size - 1 additions and a quotient.
TEST(StageTwoScoresOracle, IsMetWithinTheDerivedBounds) {
  Random random(4);
  for (const int64_t group_size : {1, 2, 4}) {
    Matrix scores = random.matrix(group_size, 10), norms = random.matrix(group_size, 10);
    for (int64_t h = 0; h < group_size; ++h) {
      for (double& score : scores.row(h)) score = std::abs(score);
      for (double& norm : norms.row(h)) norm = std::abs(norm);
    }
    for (const GqaProduct gqa : {GqaProduct::mean_of_products, GqaProduct::product_of_means}) {
      EXPECT_TRUE(all_within(stage_two_scores(scores, norms, 1e-4, gqa),
                             oracle::stage_two_scores(oracle::exactly(MatrixView(scores)),
                                                      oracle::exactly(MatrixView(norms)), 1e-4, gqa)));
    }
  }
}

TEST(SelectCritical, TakesTheBestByAttentionThenTheBestOfTheRest) {
  // Attention puts entry 0 first. Of entries 1, 2, 3 the stage-two scores 1, 9, 5 put 2 first, then 3. Entry
  // 0's score of 100 no longer counts.
  const std::vector<double> attention{0.6, 0.3, 0.1, 0.0}, stage_two{100, 1, 9, 5};
  const TwoStageSelection selection = select_critical(attention, stage_two, 3, 1);
  EXPECT_EQ(selection.stage_one, Positions{0});
  EXPECT_EQ(selection.selected, (Positions{0, 2, 3}));
}

TEST(SelectCritical, HasEmptyStagesAtBothEnds) {
  const std::vector<double> attention{0.1, 0.6, 0.3}, stage_two{3, 1, 2};
  EXPECT_EQ(select_critical(attention, stage_two, 0, 0).selected, Positions{});
  EXPECT_EQ(select_critical(attention, stage_two, 2, 0).selected, (Positions{0, 2})) << "stage two alone";
  EXPECT_EQ(select_critical(attention, stage_two, 2, 2).selected, (Positions{1, 2})) << "stage one alone";
  EXPECT_EQ(select_critical(attention, stage_two, 3, 1).selected, (Positions{0, 1, 2}));
  EXPECT_EQ(select_critical({}, {}, 0, 0).selected, Positions{});
}

TEST(SelectCritical, LetsTheSmallerIndexWinTiesInBothStages) {
  const std::vector<double> attention{1, 1, 1, 1}, stage_two{2, 2, 2, 2};
  const TwoStageSelection selection = select_critical(attention, stage_two, 2, 1);
  EXPECT_EQ(selection.stage_one, Positions{0});
  EXPECT_EQ(selection.selected, (Positions{0, 1}));
}

TEST(SelectCritical, NamesWhatItRefuses) {
  const std::vector<double> two{1, 2}, three{1, 2, 3};
  EXPECT_EQ(message_of<ShapeMismatch>([&] { select_critical(two, three, 1, 1); }),
            "attention scores is 2 but stage-two scores is 3");
  EXPECT_THROW(select_critical(two, two, 3, 1), ShapeMismatch) << "more than there are";
  EXPECT_THROW(select_critical(two, two, 1, 2), ShapeMismatch) << "stage one larger than both";
  EXPECT_THROW(select_critical(two, two, 1, -1), ShapeMismatch);
  const std::vector<double> nan{std::numeric_limits<double>::quiet_NaN(), 1};
  EXPECT_THROW(select_critical(nan, two, 1, 1), NonFinite);
  EXPECT_THROW(select_critical(two, nan, 1, 0), NonFinite);
}

TEST(AdaptiveStageOne, IsTheSmallestThatHoldsMoreThanHalf) {
  // Position 3 is always kept and has 1/8. Then 1/4 -> 3/8, 1/4 -> 5/8 > 1/2: two entries.
  const Positions always{3}, ranked{1, 0, 2};
  EXPECT_EQ(adaptive_stage_one(matrix({{0.25, 0.25, 0.375, 0.125}}), always, ranked), 2);
  // Exactly 1/2 is not more than half: 1/4 + 1/4 = 1/2, so one more entry is needed.
  EXPECT_EQ(adaptive_stage_one(matrix({{0.25, 0, 0.5, 0.25}}), always, ranked), 3);
}

TEST(AdaptiveStageOne, IsTheWorstRows) {
  // Row 0 needs no entry beside the always-kept one; row 1 needs one; row 2 needs two.
  const Positions always{3}, ranked{1, 0, 2};
  EXPECT_EQ(adaptive_stage_one(matrix({{0, 0, 0, 1}, {0, 1, 0, 0}, {0.75, 0.25, 0, 0}}), always, ranked), 2);
  EXPECT_EQ(adaptive_stage_one(matrix({{0, 0, 0, 1}}), always, ranked), 0);
}

TEST(AdaptiveStageOne, IsAllWhereNoneSuffices) {
  EXPECT_EQ(adaptive_stage_one(matrix({{0.1, 0.2, 0.3, 0.4}}), {}, Positions{1, 0}), 2);
  EXPECT_EQ(adaptive_stage_one(matrix({{0.5, 0.5}}), {}, Positions{0}), 1);
  EXPECT_EQ(adaptive_stage_one(matrix({{1, 0}}), {}, {}), 0) << "nothing to choose from";
  EXPECT_EQ(adaptive_stage_one(Matrix(0, 4), {}, Positions{1}), 0) << "no query to satisfy";
}

RC_GTEST_PROP(SelectCriticalProperty, KeepsStageOneAndNothingBetterIsLeft, ()) {
  const std::vector<double> attention = numbers(*test::dyadics(1, 25, 4));
  Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  std::vector<double> stage_two;
  for (size_t i = 0; i < attention.size(); ++i) stage_two.push_back(static_cast<double>(random.index(6)));
  const int64_t k = *test::integer(0, std::ssize(attention));
  const int64_t one = *test::integer(0, k);
  const TwoStageSelection selection = select_critical(attention, stage_two, k, one);
  RC_ASSERT(selection.stage_one == select_top(attention, one));
  RC_ASSERT(std::ssize(selection.selected) == k);
  RC_ASSERT(std::ranges::includes(selection.selected, selection.stage_one));
  RC_ASSERT(std::ranges::adjacent_find(selection.selected, std::ranges::greater_equal()) ==
            selection.selected.end());
  const auto in = [](const Positions& set, int64_t i) { return std::ranges::binary_search(set, i); };
  for (const int64_t taken : selection.selected) {
    if (in(selection.stage_one, taken)) continue;
    for (int64_t left = 0; left < std::ssize(attention); ++left) {
      if (in(selection.selected, left)) continue;
      const double better = stage_two[taken], worse = stage_two[left];
      RC_ASSERT(better > worse || (better == worse && taken < left));
    }
  }
}

// Brute force: tries every count from 0.
RC_GTEST_PROP(AdaptiveStageOneProperty, AgreesWithTryingEveryCount, ()) {
  Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const int64_t rows = *test::integer(0, 4), tokens = 8;
  Matrix weights(rows, tokens);
  for (int64_t i = 0; i < rows; ++i) {
    for (double& weight : weights.row(i))
      weight = std::ldexp(static_cast<double>(random.index(5)), -4);  // exact sums
  }
  const Positions always{6, 7}, ranked = random.subset(6, *test::integer(0, 6));
  const auto suffices = [&](size_t count) {
    for (int64_t i = 0; i < rows; ++i) {
      Positions held = always;
      held.insert(held.end(), ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count));
      if (!(attention_mass(weights.row(i), held) > 0.5)) return false;
    }
    return true;
  };
  size_t expected = 0;
  while (expected < ranked.size() && !suffices(expected)) ++expected;
  RC_CLASSIFY(expected == 0, "none needed");
  RC_CLASSIFY(expected == ranked.size() && !suffices(expected), "none suffices");
  RC_ASSERT(adaptive_stage_one(weights, always, ranked) == static_cast<int64_t>(expected));
}

TEST(StageOneCount, IsAlphasFloorOrTheAdaptiveCount) {
  const auto never = []() -> int64_t {
    ADD_FAILURE() << "alpha is not adaptive";
    return 0;
  };
  TwoStage options;
  options.alpha = Decimal{29, 2};
  EXPECT_EQ(stage_one_count(options, 100, never), 29);
  EXPECT_EQ(stage_one_count(options, 0, never), 0);
  options.alpha = std::nullopt;
  EXPECT_EQ(stage_one_count(options, 100, [] { return int64_t{7}; }), 7);
}

TEST(CriticalKv, TakesAttentionFirstAndItsProductsWithNormsThen) {
  // Positions 1..4 are candidates. Attention puts 4 first; of the others 2 has the largest (A + 1) N.
  const test::RandomLayer random({1, 1, 2, 2}, 6, 1, 1, 3);
  const LayerView layer = random.view();
  const Matrix attention = matrix({{9, 1, 2, 3, 4, 9}}), norms = matrix({{9, 1, 8, 2, 1, 9}});
  const Positions always_kept{0, 5}, positions{0, 1, 2, 3, 4, 5};
  const CriticalKvPrompt prompt{layer, 1, always_kept, positions, 1, 4, attention, attention, norms};
  TwoStage options;
  options.epsilon = 1;
  const CriticalKvSelection selection = critical_kv(prompt, options, Positions{2});
  EXPECT_EQ(selection.heads[0].stage_one, Positions{3}) << "an index of candidates";
  EXPECT_EQ(selection.heads[0].selected, (Positions{1, 3}));
  EXPECT_EQ(
      std::vector<double>(selection.stage_two_scores.row(0).begin(), selection.stage_two_scores.row(0).end()),
      (std::vector<double>{90, 2, 24, 8, 5, 90}));
}

}  // namespace
}  // namespace kvbound::reference::critical_kv_test
