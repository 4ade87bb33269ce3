// Means with their uncertainty and rank correlations, against hand-counted cases and their
// definitions' properties.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/evaluate/statistics.hpp>
#include <kvbound/traces/portable_random.hpp>

namespace kvbound::sim::statistics_test {
namespace {

using Numbers = std::vector<double>;

const Bootstrap kBootstrap(2000, 0);

TEST(Estimate, HasMeanAndStandardErrorOfTheTextbook) {
  const Estimate estimate = *kBootstrap.mean(Numbers{1, 2, 4, 5});
  EXPECT_EQ(estimate.mean, 3);
  EXPECT_EQ(estimate.count, 4);
  EXPECT_DOUBLE_EQ(*estimate.standard_error, std::sqrt(10.0 / 3 / 4));
  ASSERT_TRUE(estimate.interval);
  EXPECT_LT(estimate.interval->low, 3);
  EXPECT_GT(estimate.interval->high, 3);
  EXPECT_GE(estimate.interval->low, 1);
  EXPECT_LE(estimate.interval->high, 5);
}

TEST(Estimate, OfOneTaskHasNoUncertainty) {
  const Estimate estimate = *kBootstrap.mean(Numbers{7});
  EXPECT_EQ(estimate.mean, 7);
  EXPECT_FALSE(estimate.standard_error);
  EXPECT_FALSE(estimate.interval);
  EXPECT_FALSE(kBootstrap.mean(Numbers{}));
}

TEST(Estimate, OfEqualValuesIsCertain) {
  const Estimate estimate = *kBootstrap.mean(Numbers{2, 2, 2});
  EXPECT_EQ(*estimate.standard_error, 0);
  EXPECT_EQ(estimate.interval->low, 2);
  EXPECT_EQ(estimate.interval->high, 2);
}

TEST(Bootstrap, DependsOnItsSeedAlone) {
  const Numbers values{0.31, 1.73, 2.29, 9.11, 4.47, 3.37, 7.01, 0.07, 5.59, 6.61, 8.83, 2.03};
  const Estimate one = *Bootstrap(500, 3).mean(values), again = *Bootstrap(500, 3).mean(values),
                 other = *Bootstrap(500, 4).mean(values);
  EXPECT_EQ(one.interval->low, again.interval->low);
  EXPECT_EQ(one.interval->high, again.interval->high);
  EXPECT_NE(one.interval->low, other.interval->low);
}

// The interval of a mean of n normal values covers the truth in less than 95 % of samples (the percentile
// interval of few values is too short: about 92 % for n = 20), but surely in 88 %: 400 samples stray from 92
// % by 1.4 % (one deviation).
TEST(Bootstrap, CoversTheTrueMeanAboutAsOftenAsItSays) {
  int covered = 0;
  for (uint64_t sample = 0; sample < 400; ++sample) {
    Numbers values;
    for (uint64_t i = 0; i < 20; ++i) values.push_back(5 + traces::Stream(sample).normal(i));
    const Interval interval = *Bootstrap(400, static_cast<int64_t>(sample)).mean(values)->interval;
    covered += interval.low <= 5 && 5 <= interval.high ? 1 : 0;
  }
  EXPECT_GT(covered, 0.86 * 400);
  EXPECT_LT(covered, 0.98 * 400);
}

TEST(Bootstrap, LeavesOutWhatIsNotFinite) {
  const auto sometimes_undefined = [](std::span<const int64_t> drawn) { return drawn[0] == 0 ? NAN : 1.0; };
  EXPECT_EQ(kBootstrap.interval(3, sometimes_undefined)->low, 1);
  EXPECT_FALSE(kBootstrap.interval(3, [](std::span<const int64_t>) { return double{NAN}; }));
  EXPECT_FALSE(kBootstrap.interval(1, [](std::span<const int64_t>) { return 1.0; }));
}

TEST(RankCorrelation, OfHandCountedCases) {
  EXPECT_DOUBLE_EQ(rank_correlation(Numbers{1, 2, 3, 4}, Numbers{10, 20, 30, 1000}), 1);
  EXPECT_DOUBLE_EQ(rank_correlation(Numbers{1, 2, 3, 4}, Numbers{4, 3, 2, -100}), -1);
  // Ranks 1 2 3 4 5 and 2 1 4 3 5: 1 - 6 * 4 / (5 * 24)
  EXPECT_DOUBLE_EQ(rank_correlation(Numbers{1, 2, 3, 4, 5}, Numbers{20, 10, 40, 30, 50}), 0.8);
  // With ties: ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: sums of products 4.5, of squares 4.5 and 5
  EXPECT_DOUBLE_EQ(rank_correlation(Numbers{1, 2, 2, 3}, Numbers{1, 2, 3, 4}), 4.5 / std::sqrt(4.5 * 5));
  EXPECT_TRUE(std::isnan(rank_correlation(Numbers{1, 1, 1}, Numbers{1, 2, 3})));
  EXPECT_TRUE(std::isnan(rank_correlation(Numbers{1}, Numbers{1})));
  EXPECT_THROW(rank_correlation(Numbers{1, 2}, Numbers{1}), ShapeMismatch);
}

TEST(ShareOrderedAlike, OfHandCountedCases) {
  EXPECT_DOUBLE_EQ(share_ordered_alike(Numbers{1, 2, 3}, Numbers{1, 2, 3}), 1);
  EXPECT_DOUBLE_EQ(share_ordered_alike(Numbers{3, 2, 1}, Numbers{1, 2, 3}), 0);
  EXPECT_DOUBLE_EQ(share_ordered_alike(Numbers{1, 3, 2}, Numbers{1, 2, 3}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(share_ordered_alike(Numbers{1, 1, 2}, Numbers{1, 2, 3}), 2.5 / 3)
      << "equal x says nothing";
  EXPECT_DOUBLE_EQ(share_ordered_alike(Numbers{1, 2, 3}, Numbers{1, 1, 3}), 1) << "a tie of y is no pair";
  EXPECT_TRUE(std::isnan(share_ordered_alike(Numbers{1, 2}, Numbers{3, 3})));
}

RC_GTEST_PROP(RankCorrelation, DoesNotDependOnScaleAndReversesWithOrder, ()) {
  const auto count = *rc::gen::inRange<size_t>(2, 30);
  Numbers x, y, grown, negated;
  for (size_t i = 0; i < count; ++i) {
    x.push_back(*rc::gen::inRange(-20, 21));
    y.push_back(*rc::gen::inRange(-20, 21));
    grown.push_back(std::exp(x.back() / 4));
    negated.push_back(-x.back());
  }
  const double found = rank_correlation(x, y);
  if (std::isnan(found)) RC_DISCARD("all equal");
  RC_ASSERT(found >= -1 && found <= 1);
  RC_ASSERT(std::abs(rank_correlation(grown, y) - found) <= 1e-12);
  RC_ASSERT(std::abs(rank_correlation(negated, y) + found) <= 1e-12);
  RC_ASSERT(rank_correlation(y, x) == found);
}

}  // namespace
}  // namespace kvbound::sim::statistics_test
