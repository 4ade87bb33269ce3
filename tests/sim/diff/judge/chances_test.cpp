#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/sim/diff/judge/functionals.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::chances_test {
namespace {

constexpr int64_t kTokens = 1000, kDim = 32, kSteps = 12, kHeads = 4;

// Queries of several steps and heads over one cache, by a kernel whose weights are rounded to 16 bits.
struct Case {
  explicit Case(double weights = 0x1p-8)
      : queries(kSteps * kHeads, kDim), keys(kTokens, kDim), values(kTokens, kDim) {
    test::Random random(3);
    for (Matrix* matrix : {&queries, &keys, &values}) {
      for (int64_t j = 0; j < matrix->rows(); ++j) {
        for (double& number : matrix->row(j)) number = random.normal();
      }
    }
    arithmetic = reference::double_precision();
    arithmetic.weights = weights;
    errors = reference::attention_errors(queries, keys, values, 0.2, {}, arithmetic);
  }

  RealClaim claim(double scale = 1, double gain = 1, Dtype storage = Dtype::f64) const {
    const Matrix output = reference::attention(queries, keys, values, 0.2 * scale).output;
    RealClaim claim{{kSteps, kHeads, kDim}, {output.numbers().begin(), output.numbers().end()}, storage};
    for (double& number : claim.numbers) number *= gain;
    return claim;
  }
  ChanceTests judge(const RealClaim& claim) const {
    OutputFunctionalsJudge judge(claim);
    for (int64_t row = 0; row < queries.rows(); ++row) judge.add(row, {errors, row, values, {}, arithmetic});
    return judge.chances();
  }

  Matrix queries, keys, values;
  reference::Arithmetic arithmetic;
  reference::AttentionErrors errors;
};

TEST(Chances, TestRowsAndTheirSums) {
  const ChanceTests tests = Case().judge(Case().claim());
  EXPECT_EQ(tests.count, 2 * (kSteps * kHeads + kHeads + kSteps + 1));
  ASSERT_EQ(tests.farthest.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    const ChanceTest& test = tests.farthest[i];
    EXPECT_EQ(test.functional, i < 4 ? "gain" : "logit scale");
    EXPECT_NEAR(test.value, 1, 1e-9);
    EXPECT_EQ(test.deviations(), 0);
  }
  EXPECT_GE(tests.farthest[0].at[0], 0);
  EXPECT_EQ(tests.farthest[1].at[0], ChanceTest::kAll);
  EXPECT_GE(tests.farthest[1].at[1], 0);
  EXPECT_GE(tests.farthest[2].at[0], 0);
  EXPECT_EQ(tests.farthest[2].at[1], ChanceTest::kAll);
  EXPECT_EQ(tests.farthest[3].at, (std::vector<int64_t>{ChanceTest::kAll, ChanceTest::kAll}));
}

// A factor that no row shows.
TEST(Chances, FindAFactorInASumOverRows) {
  const ChanceTests gain = Case().judge(Case().claim(1, 1.003));
  EXPECT_LT(gain.farthest[0].deviations(), 6);
  EXPECT_GT(gain.farthest[3].deviations(), 8);
  EXPECT_NEAR(gain.farthest[3].value, 1.003, 1e-9);
  EXPECT_LT(gain.farthest[3].deviation, gain.farthest[0].deviation / 2);
  const ChanceTests scale = Case().judge(Case().claim(1.003));
  EXPECT_GT(scale.farthest[7].deviations(), 8);
  EXPECT_NEAR(scale.farthest[7].value, 1.003, 1e-4);
}

TEST(Chances, FindTheRowThatIsOff) {
  RealClaim claim = Case().claim();
  for (int64_t c = 0; c < kDim; ++c) claim.numbers[(7 * kHeads + 2) * kDim + c] *= 0.97;
  const ChanceTests tests = Case().judge(claim);
  EXPECT_EQ(tests.farthest[0].at, (std::vector<int64_t>{7, 2}));
  EXPECT_EQ(tests.farthest[1].at, (std::vector<int64_t>{ChanceTest::kAll, 2}));
  EXPECT_EQ(tests.farthest[2].at, (std::vector<int64_t>{7, ChanceTest::kAll}));
  EXPECT_GT(tests.farthest[0].deviations(), 8);
}

TEST(Chances, LeaveOutRowsThatAreNotFinite) {
  RealClaim claim = Case().claim();
  claim.numbers[5] = std::numeric_limits<double>::quiet_NaN();
  const ChanceTests tests = Case().judge(claim);
  EXPECT_EQ(tests.count, 2 * (kSteps * kHeads - 1 + kHeads + kSteps + 1));
  for (const ChanceTest& test : tests.farthest) EXPECT_TRUE(std::isfinite(test.value));
}

// Rounded stored numbers are within what chance does; without their rounding they are not.
TEST(Chances, AllowTheRoundingOfStoredNumbers) {
  const Case given(0);
  RealClaim claim = given.claim(1, 1, Dtype::bf16);
  for (double& number : claim.numbers) {
    const double spacing = 2 * half_spacing(Dtype::bf16, number);
    number = std::nearbyint(number / spacing) * spacing;
  }
  for (const ChanceTest& test : given.judge(claim).farthest) EXPECT_LT(test.deviations(), 4);
  claim.storage = Dtype::f64;
  EXPECT_GT(given.judge(claim).farthest[0].deviations(), 1e3);
}

// Equal rows are rounded alike, and their sum is as far off as each.
TEST(Chances, AllowEqualRoundingsOfEqualRows) {
  Case given(0);
  for (int64_t row = 0; row < given.queries.rows(); ++row) {
    for (int64_t c = 0; c < kDim; ++c) given.queries(row, c) = given.queries(0, c);
  }
  for (int64_t j = 0; j < kTokens; ++j) {
    for (int64_t c = 0; c < kDim; ++c) given.values(j, c) = (c % 2 == 0 ? 1 : -1) * (1 + 0x1p-8 - 0x1p-10);
  }
  given.errors =
      reference::attention_errors(given.queries, given.keys, given.values, 0.2, {}, given.arithmetic);
  RealClaim claim = given.claim(1, 1, Dtype::bf16);
  for (double& number : claim.numbers) number = std::copysign(1, number);
  const ChanceTests tests = given.judge(claim);
  EXPECT_LT(tests.farthest[3].value, 1 - 0x1p-9);
  EXPECT_GT((1 - tests.farthest[3].value) / tests.farthest[3].deviation, 20) << "not by chance";
  for (const ChanceTest& test : tests.farthest) EXPECT_EQ(test.deviations(), 0);
}

// Roundings of weights that the dump does not declare: what one of as many bits would do is listed.
TEST(Chances, SayWhatUndeclaredRoundingsWouldDo) {
  const ChanceTests tests = Case(0).judge(Case(0).claim());
  const ChanceTest& row = tests.farthest[0];
  ASSERT_EQ(row.undeclared.size(), undeclared_roundings().size());
  EXPECT_NEAR(row.undeclared[1] / row.undeclared[0], 8, 1e-6) << "BF16 and FP16";
  EXPECT_NEAR(row.undeclared[3] / row.undeclared[2], 8, 1e-6) << "the same of partials";
  EXPECT_GT(row.undeclared[4], row.undeclared[0]) << "TF32: weights, and products";
  const ChanceTests declared = Case().judge(Case().claim());
  EXPECT_NEAR(row.undeclared[1], declared.farthest[0].deviation, 0.5 * row.undeclared[1]);
}

}  // namespace
}  // namespace kvbound::sim::chances_test
