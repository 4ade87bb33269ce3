#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/float16.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::comparison_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A comparison of claims in double precision, whose rounding is far below the bounds given here.
TensorAgreement compared(const std::vector<double>& claimed, const std::vector<double>& expected,
                         const std::vector<double>& bounds, Dtype storage = Dtype::f64) {
  return compare("score", {{std::ssize(claimed)}, claimed, storage}, expected, bounds);
}

TEST(Comparison, JudgesEveryElementByItsOwnBound) {
  const TensorAgreement result = compared({1.5, 2.0, 3.25}, {1, 2, 3}, {1, 0, 0.125});
  EXPECT_EQ(result.elements, 3);
  EXPECT_EQ(result.judged, 3);
  EXPECT_EQ(result.outside, 1);
  EXPECT_FALSE(result.agrees());
  EXPECT_EQ(result.worst.value().index, std::vector<int64_t>{2});
  EXPECT_EQ(result.worst.value().claimed, 3.25);
  EXPECT_EQ(result.worst.value().expected, 3);
  EXPECT_EQ(result.worst.value().error, 0.25);
  EXPECT_NEAR(result.worst.value().share(), 2, 1e-12);
}

TEST(Comparison, SaysWhichElementsAreOutsideAndWhichUndecided) {
  EXPECT_EQ(compared({1.5, 2, kNan, 3}, {1, 2, 3, 4}, {1, 0, 9, 0.5}).outside_at,
            (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(compare("kept", std::vector<int64_t>{5, 6, 7}, {5, 7, 6}).outside_at,
            (std::vector<int64_t>{1, 2}));
  const TensorAgreement uncertain =
      compare_uncertain("score", {{4}, {1, 2, kNan, 4}, Dtype::f64}, std::vector<double>{1, 9, 3, 9},
                        std::vector<double>{1, 1, kInfinity, 1}, {false, false, false, true});
  EXPECT_EQ(uncertain.undecided_at, std::vector<int64_t>{1});
  EXPECT_EQ(uncertain.outside_at, (std::vector<int64_t>{2, 3}));
}

TEST(Comparison, AcceptsAnErrorOfExactlyTheBoundAndNoneJustOver) {
  const double half = half_spacing(Dtype::f64, 1.25);
  EXPECT_TRUE(compared({1.25}, {1}, {0.25 - half}).agrees());
  EXPECT_FALSE(compared({1.25}, {1}, {0.25 - 4 * half}).agrees());
  EXPECT_TRUE(compared({0.75}, {1}, {0.25 - half_spacing(Dtype::f64, 0.75)}).agrees());
  EXPECT_FALSE(compared({0.75}, {1}, {0.25 - 4 * half}).agrees());
  EXPECT_TRUE(compared({1}, {1}, {0}).agrees());
}

TEST(Comparison, NeverAcceptsNan) {
  for (const double bound : {0.0, 1.0, 1e300, kInfinity, kNan}) {
    EXPECT_FALSE(compared({kNan}, {1}, {bound}).agrees()) << bound;
    EXPECT_FALSE(compared({1}, {kNan}, {bound}).agrees()) << bound;
    EXPECT_FALSE(compared({kNan}, {kNan}, {bound}).agrees()) << bound;
  }
  EXPECT_FALSE(compared({1}, {1.5}, {kNan}).agrees()) << "a bound that is no number allows nothing";
  const TensorAgreement one = compared({1, kNan, 1e9}, {1, 1, 1}, {1, 1, 1});
  EXPECT_EQ(one.outside, 2);
  EXPECT_EQ(one.worst.value().index, std::vector<int64_t>{1}) << "nothing is worse than NaN";
  EXPECT_EQ(one.worst.value().share(), kInfinity);
}

TEST(Comparison, AcceptsInfinityOnlyWhereItIsExpectedOrRoundedTo) {
  EXPECT_TRUE(compared({kInfinity}, {kInfinity}, {0}).agrees());
  EXPECT_FALSE(compared({-kInfinity}, {kInfinity}, {0}).agrees());
  EXPECT_FALSE(compared({kInfinity}, {1}, {1}).agrees());
  EXPECT_TRUE(compared({kInfinity}, {65519}, {2}, Dtype::f16).agrees());
  EXPECT_FALSE(compared({-kInfinity}, {65519}, {2}, Dtype::f16).agrees());
  EXPECT_FALSE(compared({kInfinity}, {65500}, {2}, Dtype::f16).agrees());
  EXPECT_FALSE(compared({kInfinity}, {65519}, {2}, Dtype::bf16).agrees());
}

TEST(Comparison, SaysOfAnElementWithoutABoundThatItWasNotJudged) {
  const TensorAgreement result = compared({5, 1}, {1, 1}, {1e200, 0.5});
  EXPECT_TRUE(result.agrees());
  EXPECT_EQ(result.elements, 2);
  EXPECT_EQ(result.judged, 1);
  EXPECT_EQ(compared({5}, {1}, {kInfinity}).judged, 0);
}

TEST(Comparison, JudgesNothingWhereZerosEverywhereWouldPass) {
  EXPECT_EQ(compared({0, 0}, {0.5, 0.01}, {0.6, 0.3}).judged, 0);
  EXPECT_EQ(compared({0.5, 0}, {0.5, 0.01}, {0.1, 0.3}).judged, 2);
  EXPECT_EQ(compared({0.5, 0}, {0.5, 0.01}, {0.1, 0.7}).judged, 1);
  EXPECT_EQ(compared({9, 0}, {0.5, 0.01}, {0.6, 0.6}).judged, 1) << "what is outside is judged in any case";
}

TEST(Comparison, TellsZerosThatProveNothing) {
  EXPECT_TRUE(compared({0, 0}, {0, 0}, {0, 0}).all_zero);
  EXPECT_FALSE(compared({0, 1}, {0, 1}, {0, 0}).all_zero);
  EXPECT_FALSE(compared({0, 1}, {0, 0}, {0, 0}).all_zero) << "wrong is evidence";
  EXPECT_FALSE(compared({}, {}, {}).all_zero);
  EXPECT_EQ(compared({}, {}, {}).judged, 0);
}

TEST(Comparison, AllowsHalfASpacingOfTheStoredType) {
  const double third = 1.0 / 3;
  EXPECT_TRUE(compared({from_bfloat16(to_bfloat16(third))}, {third}, {0}, Dtype::bf16).agrees());
  EXPECT_FALSE(compared({from_bfloat16(to_bfloat16(third))}, {third}, {0}, Dtype::f16).agrees());
  EXPECT_TRUE(compared({from_float16(to_float16(third))}, {third}, {0}, Dtype::f16).agrees());
  EXPECT_FALSE(compared({from_float16(to_float16(third))}, {third}, {0}, Dtype::f32).agrees());
  EXPECT_TRUE(compared({static_cast<float>(third)}, {third}, {0}, Dtype::f32).agrees());
  EXPECT_TRUE(compared({0}, {0x1p-26}, {0}, Dtype::f16).agrees()) << "rounds to zero";
  EXPECT_FALSE(compared({0}, {0x1p-24}, {0}, Dtype::f16).agrees()) << "the smallest number does not";
}

TEST(Comparison, EveryRoundingOfRandomNumbersIsWithinHalfASpacing) {
  test::Random random(7);
  for (int i = 0; i < 20000; ++i) {
    const double number = std::ldexp(random.normal(), static_cast<int>(random.index(60)) - 40);
    EXPECT_TRUE(compared({from_float16(to_float16(number))}, {number}, {0}, Dtype::f16).agrees()) << number;
    EXPECT_TRUE(compared({from_bfloat16(to_bfloat16(number))}, {number}, {0}, Dtype::bf16).agrees())
        << number;
    EXPECT_TRUE(compared({static_cast<float>(number)}, {number}, {0}, Dtype::f32).agrees()) << number;
  }
}

TensorAgreement compared_uncertain(const std::vector<double>& claimed, const std::vector<double>& expected,
                                   const std::vector<double>& bounds, const std::vector<bool>& certain) {
  return compare_uncertain("output", {{std::ssize(claimed)}, claimed, Dtype::f64}, expected, bounds, certain);
}

TEST(UncertainComparison, LeavesUndecidedWhatIsBeyondAnUncertainBoundOrHasNone) {
  const TensorAgreement result =
      compared_uncertain({1, 5, 5, 1, 5}, {1, 1, 1, 1, 1}, {0.5, 0.5, kInfinity, kInfinity, kNan},
                         {false, false, true, true, true});
  EXPECT_EQ(result.outside, 0);
  EXPECT_EQ(result.undecided, 4) << "the first is the reference's own";
  EXPECT_EQ(result.judged, 1);
}

TEST(UncertainComparison, FindsWhatIsCertainAndOutsideBesideWhatIsNot) {
  const TensorAgreement result =
      compared_uncertain({1, 5, 5}, {1, 1, 1}, {0.5, 0.5, 0.5}, {true, false, true});
  EXPECT_EQ(result.undecided, 1);
  EXPECT_EQ(result.outside, 1);
  EXPECT_EQ(result.worst.value().index, std::vector<int64_t>{2});
}

TEST(UncertainComparison, NeverAcceptsNanNorLeavesItUndecided) {
  for (const bool certain : {false, true}) {
    for (const double bound : {0.0, 0.5, kInfinity, kNan}) {
      const TensorAgreement result = compared_uncertain({1, kNan}, {1, 1}, {0.5, bound}, {true, certain});
      EXPECT_EQ(result.outside, 1) << certain << " " << bound;
      EXPECT_EQ(result.undecided, 0) << certain << " " << bound;
      EXPECT_EQ(result.worst.value().index, std::vector<int64_t>{1}) << certain << " " << bound;
    }
  }
}

TEST(HalfSpacing, IsTheNeighboursDistanceHalved) {
  EXPECT_EQ(half_spacing(Dtype::f64, 1), 0x1p-53);
  EXPECT_EQ(half_spacing(Dtype::f32, 1), 0x1p-24);
  EXPECT_EQ(half_spacing(Dtype::f16, -1), 0x1p-11);
  EXPECT_EQ(half_spacing(Dtype::bf16, 1.9), 0x1p-8);
  EXPECT_EQ(half_spacing(Dtype::bf16, 4), 0x1p-6);
  EXPECT_EQ(half_spacing(Dtype::f16, 0), 0x1p-25);
  EXPECT_EQ(half_spacing(Dtype::f16, 0x1p-20), 0x1p-25);
  EXPECT_EQ(half_spacing(Dtype::f32, 0), 0x1p-150);
  EXPECT_EQ(overflow_threshold(Dtype::f16), 65520);
  EXPECT_EQ(overflow_threshold(Dtype::bf16), 0x1.ffp127);
  EXPECT_EQ(overflow_threshold(Dtype::f32), 0x1.ffffffp127);
}

TEST(Comparison, GivesTheMedianOfBoundOverError) {
  const TensorAgreement result = compared({1, 1.5, 2.25, 3.125}, {1, 1, 2, 3}, {1, 1, 1, 1});
  EXPECT_NEAR(*result.median_slack, 4, 1e-12) << "of 2, 4 and 8; what is exact has no ratio";
  EXPECT_FALSE(compared({1}, {1}, {1}).median_slack);
}

TEST(Comparison, IndicesAreOfTheTensorsShape) {
  const RealClaim claim{{2, 3, 2}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0}, Dtype::f32};
  const std::vector<double> zeros(12);
  EXPECT_EQ(compare("output", claim, zeros, zeros).worst.value().index, (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(compare("output", claim, zeros, zeros).worst.value().ulps(), 7 / 0x1p-149);
}

TEST(Comparison, RefusesOtherLengths) {
  EXPECT_THROW(compared({1, 2}, {1}, {1, 1}), ShapeMismatch);
  EXPECT_THROW(compared({1}, {1}, {}), ShapeMismatch);
}

TEST(Comparison, IntegersAreRightOrWrong) {
  const TensorAgreement result = compare("score_positions", {0, 5, 2, 9}, {0, 1, 2, 3});
  EXPECT_EQ(result.outside, 2);
  EXPECT_EQ(result.worst.value().index, std::vector<int64_t>{1}) << "the first";
  EXPECT_EQ(result.worst.value().claimed, 5);
  EXPECT_EQ(result.worst.value().expected, 1);
  EXPECT_EQ(compare("score_positions", {0, 1}, {0, 2}).outside, 1);
  EXPECT_TRUE(compare("score_positions", {4, 5}, {4, 5}).agrees());
}

}  // namespace
}  // namespace kvbound::sim::comparison_test
