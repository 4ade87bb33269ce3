#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/study/score_variance.hpp>

#include "support/message_of.hpp"
#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::sim::score_variance_test {
namespace {

using oracle::Real;
using test::message_of;
using Numbers = std::vector<double>;

// One entry after these scores.
MeanVariances of(const Numbers& scores, int64_t window) {
  ScoreVariance variance(window);
  for (const double score : scores) variance.observe({score});
  return variance.means();
}

TEST(ScoreVariance, ComparesTheLastQueriesWithAll) {
  const MeanVariances means = of({0.25, 0.75, 0.5, 0.5, 0.25, 0.75}, 2);
  EXPECT_NEAR(means.whole, 4.0 / 16 / 6, 1e-16);
  EXPECT_EQ(means.window, 0.0625);
  EXPECT_NEAR(means.ratio, 1.5, 1e-15);
  EXPECT_EQ(of({0.25, 0.75, 0.5}, 1).window, 0) << "one score does not vary";
}

TEST(ScoreVariance, IsOfTheEntriesThatMoreQueriesHaveSeenThanTheWindowHas) {
  ScoreVariance variance(2);
  variance.observe({0.5});
  variance.observe({0.5, 0.5});
  EXPECT_TRUE(std::isnan(variance.means().whole));
  EXPECT_TRUE(std::isnan(variance.means().window));
  EXPECT_TRUE(std::isnan(variance.means().ratio));
  variance.observe({0.25, 0.75});
  EXPECT_NEAR(variance.means().ratio, (1.0 / 64) / (1.0 / 72), 1e-15) << "entry 1 was seen twice";
  variance.observe({0.25, 0.5, 0.25});
  // Entry 0: 1/2, 1/2, 1/4, 1/4; entry 1: 1/2, 3/4, 1/2.
  EXPECT_NEAR(variance.means().whole, (1.0 / 64 + 1.0 / 72) / 2, 1e-16);
  EXPECT_NEAR(variance.means().window, (0 + 1.0 / 64) / 2, 1e-16);
  EXPECT_NEAR(variance.means().ratio, (0 + 72.0 / 64) / 2, 1e-15);
}

TEST(ScoreVariance, HasNoRatioWhereScoresDoNotVary) {
  const MeanVariances means = of({0.3, 0.3, 0.3}, 1);
  EXPECT_EQ(means.whole, 0);
  EXPECT_EQ(means.window, 0);
  EXPECT_TRUE(std::isnan(means.ratio));
  EXPECT_TRUE(std::isnan(of({1e-170, 2e-170, 3e-170}, 2).ratio)) << "its variance is no normal number";
  ScoreVariance some(1);
  for (const double score : {0.25, 0.5, 0.25}) some.observe({0.3, score});
  EXPECT_EQ(some.means().ratio, 0) << "of the entry whose scores vary";
}

// Scores that differ in their last bits only: the difference of the mean of squares and the square of
// the mean would be of the size of a rounding.
TEST(ScoreVariance, DoesNotCancel) {
  Numbers scores;
  for (int64_t i = 0; i < 40; ++i) scores.push_back(0.7 + static_cast<double>(i % 5) * 0x1p-40);
  const MeanVariances means = of(scores, 10);
  // 0, 1, 2, 3, 4: of variance 2. Means are rounded to 2^-53, and so off by 2^-13 of the step.
  EXPECT_NEAR(means.whole, 0x1p-79, 0x1p-79 * 0x1p-10);
  EXPECT_NEAR(means.window, 0x1p-79, 0x1p-79 * 0x1p-10);
  EXPECT_NEAR(means.ratio, 1, 0x1p-9);
}

// Against the definition in high precision, for scores over many orders of magnitude. Welford's rule and two
// passes are off by at most a few roundings of the mean square per query.
TEST(ScoreVarianceOracle, HoldsForScoresOfAnySize) {
  constexpr int64_t kQueries = 50, kWindow = 12;
  const double unit = std::numeric_limits<double>::epsilon() / 2;
  for (const double size : {1.0, 10.0, 50.0}) {
    const Matrix logits = test::Random(7).matrix(kQueries, 1, size);
    Numbers scores;
    for (const double logit : logits.numbers()) scores.push_back(std::exp(-std::abs(logit)));
    const auto exact = [&](size_t first) {
      Real sum = 0, squares = 0;
      const Real count = scores.size() - first;
      for (size_t i = first; i < scores.size(); ++i) sum += Real(scores[i]);
      for (size_t i = first; i < scores.size(); ++i) {
        const Real difference = Real(scores[i]) - sum / count;
        squares += difference * difference;
      }
      return static_cast<double>(squares / count);
    };
    const MeanVariances means = of(scores, kWindow);
    const double whole = exact(0), window = exact(kQueries - kWindow);
    EXPECT_NEAR(means.whole, whole, 8 * kQueries * unit * whole) << size;
    EXPECT_NEAR(means.window, window, 8 * kWindow * unit * window) << size;
    EXPECT_NEAR(means.ratio, window / whole, 16 * kQueries * unit * window / whole) << size;
  }
}

TEST(ScoreVariance, RefusesEntriesThatAreMissingAndScoresThatAreNone) {
  ScoreVariance variance(2);
  variance.observe({0.5, 0.5});
  EXPECT_EQ(message_of<ShapeMismatch>([&] { variance.observe({1}); }), "scores is 1 but 2 entries are known");
  EXPECT_EQ(message_of<NonFinite>([&] {
              variance.observe({0, std::numeric_limits<double>::quiet_NaN()});
            }),
            "scores[1] is nan");
}

}  // namespace
}  // namespace kvbound::sim::score_variance_test
