#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/merging/cam.hpp>
#include <kvbound/sim/diff/judge/spread_rule.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::spread_rule_test {
namespace {

const Cam kCam{4, 3};

// For entry 0 before two others with mean attention 0.2 and 0.6: it is spread with a
// probability of weight / 0.4.
SpreadAmbiguity ambiguity(double weight, double error, int64_t position,
                          const reference::Arithmetic& arithmetic) {
  const std::vector<int64_t> following{1, 2};
  return spread_ambiguity(kCam, {{weight, 0.2, 0.6}, {error, 0, 0}}, 0, following, 1, position, arithmetic);
}

TEST(SpreadRule, IsNoneWhereAttentionIsExact) {
  int64_t drawn = 0;
  for (int64_t position = 0; position < 1000; ++position) {
    const SpreadAmbiguity result = ambiguity(0.2, 0, position, reference::double_precision());
    EXPECT_NE(result.may, result.may_not);
    EXPECT_EQ(result.may, reference::spreads(0.5, kCam.seed, 1, position));
    drawn += result.may;
  }
  EXPECT_GT(drawn, 400);
  EXPECT_LT(drawn, 600);
}

TEST(SpreadRule, IsWhereTheDrawIsWithinTheProbabilitysError) {
  int64_t open = 0;
  for (int64_t position = 0; position < 1000; ++position) {
    const SpreadAmbiguity result = ambiguity(0.2, 0.04, position, reference::double_precision());
    EXPECT_EQ(result.may, reference::spreads(0.6, kCam.seed, 1, position));
    EXPECT_EQ(result.may_not, !reference::spreads(0.4, kCam.seed, 1, position));
    open += result.may && result.may_not;
  }
  EXPECT_GT(open, 100);
  EXPECT_LT(open, 300);
}

TEST(SpreadRule, IsNoneOfAProbabilityThatIsOneOrZeroHoweverItErrs) {
  for (int64_t position = 0; position < 1000; ++position) {
    const SpreadAmbiguity always = ambiguity(0.5, 0.05, position, reference::single_precision());
    EXPECT_TRUE(always.may && !always.may_not);
    const SpreadAmbiguity never = ambiguity(0, 0, position, reference::single_precision());
    EXPECT_TRUE(!never.may && never.may_not);
  }
}

TEST(SpreadRule, IsWhereTheMeanOfThoseThatFollowIsTooFarOff) {
  const std::vector<int64_t> following{1, 2};
  for (int64_t position = 0; position < 1000; ++position) {
    // The probability is 0.3 / mean; the mean of 0.4 and 0.8 is off by 0.1.
    const SpreadAmbiguity result = spread_ambiguity(kCam, {{0.3, 0.4, 0.8}, {0, 0.1, 0.1}}, 0, following, 1,
                                                    position, reference::double_precision());
    EXPECT_EQ(result.may, reference::spreads(0.6, kCam.seed, 1, position));
    EXPECT_EQ(result.may_not, !reference::spreads(0.3 / 0.7, kCam.seed, 1, position));
  }
}

TEST(SpreadRule, IsNoneWhereNobodyFollows) {
  const SpreadAmbiguity result =
      spread_ambiguity(kCam, {{0.5}, {0.5}}, 0, {}, 0, 7, reference::double_precision());
  EXPECT_TRUE(!result.may && result.may_not);
}

TEST(MeanAttention, IsTheGroupsMeanWithAnErrorThatKeysAddTo) {
  test::Random random(3);
  const Matrix queries = random.matrix(3, 8), keys = random.matrix(10, 8);
  const reference::Arithmetic arithmetic = reference::double_precision();
  const MeanAttention exact = mean_attention(queries, keys, 0.3, {}, arithmetic);
  double sum = 0;
  for (const double weight : exact.weights) sum += weight;
  EXPECT_NEAR(sum, 1, 1e-14);
  Matrix off(10, 8), moved = keys;
  for (int64_t c = 0; c < 8; ++c) {
    off(4, c) = 1e-3;
    moved(4, c) += 1e-3;
  }
  const MeanAttention uncertain = mean_attention(queries, keys, 0.3, off, arithmetic),
                      other = mean_attention(queries, moved, 0.3, {}, arithmetic);
  EXPECT_EQ(uncertain.weights, exact.weights);
  for (size_t j = 0; j < 10; ++j) {
    EXPECT_LT(exact.errors[j], 1e-12);
    EXPECT_LE(std::abs(other.weights[j] - exact.weights[j]), uncertain.errors[j]);
  }
}

}  // namespace
}  // namespace kvbound::sim::spread_rule_test
