#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/sim/diff/judge/functionals.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::functionals_test {
namespace {

constexpr int64_t kTokens = 2000, kDim = 32;

// Two query heads over one cache, whose weights are rounded to 16 bits.
struct Case {
  Case() : queries(2, kDim), keys(kTokens, kDim), values(kTokens, kDim) {
    test::Random random(3);
    for (Matrix* matrix : {&queries, &keys, &values}) {
      for (int64_t j = 0; j < matrix->rows(); ++j) {
        for (double& number : matrix->row(j)) number = random.normal();
      }
    }
    arithmetic = reference::double_precision();
    arithmetic.weights = 0x1p-8;
    errors = reference::attention_errors(queries, keys, values, 0.2, {}, arithmetic);
  }

  // The outputs of logits with this factor, times another, as a claim of one step.
  RealClaim claim(double scale = 1, double gain = 1, Dtype storage = Dtype::f64) const {
    const Matrix output = reference::attention(queries, keys, values, 0.2 * scale).output;
    RealClaim claim{{1, 2, kDim}, {output.numbers().begin(), output.numbers().end()}, storage};
    for (double& number : claim.numbers) number *= gain;
    return claim;
  }
  std::vector<FunctionalAgreement> judge(const RealClaim& claim) const {
    OutputFunctionalsJudge judge(claim);
    for (const int64_t row : {1, 0}) judge.add(row, {errors, row, values, {}, arithmetic});
    return judge.agreements();
  }

  Matrix queries, keys, values;
  reference::Arithmetic arithmetic;
  reference::AttentionErrors errors;
};

TEST(OutputFunctionals, FindNothingWhereNothingIsWrong) {
  const std::vector<FunctionalAgreement> found = Case().judge(Case().claim());
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].name, "gain");
  EXPECT_EQ(found[1].name, "logit scale");
  EXPECT_EQ(found[2].name, "difference");
  for (const FunctionalAgreement& functional : found) {
    EXPECT_EQ(functional.rows, 2);
    EXPECT_EQ(functional.judged, 2) << functional.name;
    EXPECT_EQ(functional.outside, 0) << functional.name;
    EXPECT_NEAR(functional.all.value, functional.is_factor ? 1 : 0, 1e-9) << functional.name;
    EXPECT_LT(functional.worst_share, 1e-6);
  }
  EXPECT_LT(found[0].all.band, 0.06);
  EXPECT_GT(found[0].all.band, 0.01);
}

TEST(OutputFunctionals, NameAFactorOfAllOutputs) {
  const std::vector<FunctionalAgreement> found = Case().judge(Case().claim(1, 0.9));
  EXPECT_EQ(found[0].outside, 2);
  EXPECT_NEAR(found[0].all.value, 0.9, 1e-9);
  EXPECT_NEAR(found[0].worst.value, 0.9, 1e-9);
  EXPECT_NEAR(found[2].all.value, 0.1, 1e-9) << "of the outputs' length";
  EXPECT_EQ(found[2].outside, 2);
  EXPECT_EQ(Case().judge(Case().claim(1, 0.99))[0].outside, 0);
}

TEST(OutputFunctionals, NameAFactorOfTheLogits) {
  const std::vector<FunctionalAgreement> found = Case().judge(Case().claim(1.04));
  EXPECT_EQ(found[1].outside, 2);
  EXPECT_NEAR(found[1].all.value, 1.04, 0.004);
  EXPECT_LT(found[1].all.band, 0.04);
}

TEST(OutputFunctionals, JudgeEachRowByItself) {
  RealClaim claim = Case().claim();
  for (size_t c = kDim; c < 2 * kDim; ++c) claim.numbers[c] *= 0.5;
  const std::vector<FunctionalAgreement> found = Case().judge(claim);
  EXPECT_EQ(found[0].outside, 1);
  EXPECT_EQ(found[0].worst_at, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(found[0].outside_at, std::vector<int64_t>{kDim}) << "the row's first element";
  EXPECT_EQ(found[0].judged_at, (std::vector<int64_t>{0, kDim}));
  EXPECT_NEAR(found[0].worst.value, 0.5, 1e-9);
  EXPECT_GT(found[0].all.value, 0.55) << "of both rows together";
  claim.numbers[kDim] = std::numeric_limits<double>::quiet_NaN();
  const std::vector<FunctionalAgreement> other = Case().judge(claim);
  EXPECT_EQ(other[0].rows, 1) << "a row that is not finite is left to its elements";
  EXPECT_EQ(other[0].outside, 0);
}

TEST(OutputFunctionals, AllowTheRoundingOfTheStoredNumbers) {
  Case given;
  given.arithmetic.weights = 0;
  given.errors =
      reference::attention_errors(given.queries, given.keys, given.values, 0.2, {}, given.arithmetic);
  const double band = given.judge(given.claim(1, 1 + 1e-4))[0].all.band,
               stored = given.judge(given.claim(1, 1 + 1e-4, Dtype::bf16))[0].all.band;
  EXPECT_LT(band, 1e-9);
  EXPECT_GT(stored, 0x1p-9);
  EXPECT_LT(stored, 0x1p-7);
  EXPECT_EQ(given.judge(given.claim(1, 1 + 1e-4))[0].outside, 2);
  EXPECT_EQ(given.judge(given.claim(1, 1 + 1e-4, Dtype::bf16))[0].outside, 0);
}

TEST(OutputFunctionals, SayNothingOfRowsWithoutABound) {
  Case given;
  for (double& error : given.errors.output.row(1)) error = std::numeric_limits<double>::infinity();
  for (double& error : given.errors.own.row(1)) error = std::numeric_limits<double>::infinity();
  const std::vector<FunctionalAgreement> found = given.judge(given.claim(1, 0.5));
  EXPECT_EQ(found[0].rows, 2);
  EXPECT_EQ(found[0].judged, 1);
  EXPECT_EQ(found[0].outside, 1);
  EXPECT_EQ(found[0].worst_at, (std::vector<int64_t>{0, 0}));
  EXPECT_LT(found[0].all.band, 1);
}

TEST(OutputFunctionals, SayNothingOfZeros) {
  Case given;
  given.values = Matrix(kTokens, kDim);
  given.errors =
      reference::attention_errors(given.queries, given.keys, given.values, 0.2, {}, given.arithmetic);
  const std::vector<FunctionalAgreement> found = given.judge(given.claim());
  for (const FunctionalAgreement& functional : found) {
    EXPECT_EQ(functional.judged, 0) << functional.name;
    EXPECT_EQ(functional.outside, 0) << functional.name;
    EXPECT_EQ(functional.all.value, functional.is_factor ? 1 : 0) << functional.name;
  }
}

TEST(OutputFunctionals, SayNothingOfRowsThatWereNotAdded) {
  EXPECT_TRUE(OutputFunctionalsJudge(Case().claim()).agreements().empty());
}

}  // namespace
}  // namespace kvbound::sim::functionals_test
