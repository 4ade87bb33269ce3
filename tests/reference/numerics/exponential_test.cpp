#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/numerics/exponential.hpp>

#include "support/exponential_terms.hpp"
#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference::exponential_test {
namespace {

using oracle::Real;
using test::available_levels;
using test::Random;
using Constants = ExponentialConstants;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kDenormal = std::numeric_limits<double>::denorm_min();
const Real kUnitRoundoff = ldexp(Real(1), -53);
const Real kEta = ldexp(Real(1), -1074);

double exponential(double x) {
  exponentiate({&x, 1}, 0);
  return x;
}

std::vector<double> exponentials(std::vector<double> numbers, double shift, InstructionSet level) {
  exponentiate(numbers, shift, level);
  return numbers;
}

std::vector<uint64_t> bits(const std::vector<double>& numbers) {
  std::vector<uint64_t> result;
  for (const double number : numbers) result.push_back(std::bit_cast<uint64_t>(number));
  return result;
}

// |fl(exp x) - exp x| <= 1.8 u exp x + eta/2, the eta only below the normal range. This implies the oracle's
// assumption about exp, 2 u and eta.
testing::AssertionResult is_within_its_bound(double x) {
  const Real exact = exp(Real(x));
  const bool subnormal = exact < ldexp(Real(1), -1022);
  const Real bound = Real("1.8") * kUnitRoundoff * exact + (subnormal ? kEta / 2 : Real(0));
  return oracle::within(exponential(x), {exact, bound}) << " for exp(" << ::testing::PrintToString(x) << ")";
}

// Arguments of every regime: results that are large, near 1, small and subnormal; tiny and huge arguments.
std::vector<double> numbers_of_all_regimes(uint64_t seed) {
  Random random(seed);
  std::vector<double> numbers;
  for (int i = 0; i < 40; ++i) {
    numbers.push_back(random.uniform(-745, 709.7));
    numbers.push_back(random.uniform(-1, 1));
    numbers.push_back(random.uniform(-40, 0));
    numbers.push_back(random.uniform(-746, -708));
    numbers.push_back(std::ldexp(random.uniform(-1, 1), static_cast<int>(-random.index(1074))));
    const double multiple = static_cast<double>(random.index(2048) - 1070) / 2;
    numbers.push_back(std::min(multiple * Constants::kLn2High + random.uniform(-1e-12, 1e-12), 709.7));
  }
  return numbers;
}

TEST(Exponentiate, IsTheExponentialOfTheDifference) {
  std::vector<double> numbers{3, -kInfinity, 3};
  EXPECT_EQ(exponential_sum(numbers, 3), 2);
  EXPECT_EQ(exponentiate(numbers, 3), 2);
  EXPECT_EQ(numbers, (std::vector<double>{1, 0, 1}));
  double one = 4;
  EXPECT_EQ(exponentiate({&one, 1}, 3), one) << "the sum of one number";
  EXPECT_TRUE(oracle::within(one, exp(oracle::Bounded(1.0))));
}

TEST(Exponentiate, OfNothingIsNothing) {
  EXPECT_EQ(exponentiate({}, 1), 0);
  EXPECT_EQ(exponential_sum({}, 1), 0);
}

TEST(Exponentiate, GoesToZeroAndInfinityWhereTheExponentialDoes) {
  EXPECT_EQ(exponential(0), 1);
  EXPECT_EQ(exponential(-0.0), 1);
  EXPECT_EQ(exponential(kDenormal), 1);
  EXPECT_EQ(exponential(-kDenormal), 1);
  // ln of half the smallest number is -745.13321910194122, of the largest and half a step 709.78271289338397.
  EXPECT_EQ(exponential(-745.1332191019411), kDenormal);
  EXPECT_EQ(exponential(-745.1332191019413), 0);
  EXPECT_TRUE(is_within_its_bound(709.782712893384));
  EXPECT_EQ(exponential(709.7827128933841), kInfinity);
  for (const double x : {-746.0, -747.0, -1e4, -1e300, -kInfinity}) EXPECT_EQ(exponential(x), 0) << x;
  for (const double x : {710.0, 711.0, 1e4, 1e300, kInfinity}) EXPECT_EQ(exponential(x), kInfinity) << x;
}

TEST(Exponentiate, LeavesNanNan) {
  for (const InstructionSet level : available_levels()) {
    std::vector<double> numbers(37, 0.0);
    numbers[5] = numbers[36] = kNan;
    EXPECT_TRUE(std::isnan(exponentiate(numbers, 0, level)));
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (i == 5 || i == 36) {
        EXPECT_TRUE(std::isnan(numbers[i])) << name(level);
      } else {
        EXPECT_EQ(numbers[i], 1) << name(level);
      }
    }
  }
}

TEST(ExponentiateOracle, IsMetWithinTheDerivedBound) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    for (const double x : numbers_of_all_regimes(seed)) ASSERT_TRUE(is_within_its_bound(x));
  }
  // Arguments where the multiple of ln 2 changes, and where results become subnormal.
  for (int k = -1075; k <= 1023; ++k) {
    const double x = (k + 0.5) * Constants::kLn2High;
    if (x > 709.78) continue;
    for (const double near : {std::nextafter(x, -kInfinity), x, std::nextafter(x, kInfinity)}) {
      ASSERT_TRUE(is_within_its_bound(near));
    }
  }
}

TEST(ExponentiateOracle, SumsWithinTheBoundOfAnyOrder) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    std::vector<double> numbers;
    for (int64_t i = random.index(70); i >= 0; --i) numbers.push_back(random.uniform(-50, 0));
    oracle::Row terms;
    for (const double number : numbers) terms.push_back(exp(oracle::Bounded(number)));
    EXPECT_TRUE(oracle::within(exponential_sum(numbers, 0), sum(terms)));
  }
}

// Every number that the doc comment's derivation rests on, computed from the constants that the code uses.
TEST(ExponentiateBound, IsWhatItsDerivationSays) {
  const auto [most_k, r, q, q_error, left_out] = test::exponential_terms<Constants>(kUnitRoundoff);
  const Real ln2 = log(Real(2)), high = Constants::kLn2High, low = Constants::kLn2Low;
  ASSERT_LE(most_k, 2047) << "11 bits";
  EXPECT_EQ(ldexp(high, 42), floor(ldexp(high, 42))) << "k ln2_high has 11 + 42 bits";
  EXPECT_LE(abs(low), ldexp(Real(1), -43));
  EXPECT_LT(r + most_k * ldexp(Real(1), -43), Real(1) / 2);
  // k ln2_low: the error of the constant and of the product.
  const Real low_error = most_k * (abs(ln2 - high - low) + kUnitRoundoff * ldexp(Real(1), -43));
  EXPECT_LE(low_error, ldexp(Real(1), -84));
  const Real reduction = (ldexp(Real(1), -55) + low_error) / kUnitRoundoff;
  EXPECT_LE(reduction * (1 + ldexp(Real(1), -50)), Real("0.26"));
  EXPECT_LT(left_out, Real("0.04"));
  EXPECT_LT(q_error, Real("0.77"));
  EXPECT_LT(r * r * (q_error + 2 * q), Real("0.23"));
  // The sum of all errors in units of u, with a margin for products of errors.
  const Real others = Real("0.04") + Real("0.23") + Real(1) / 4;
  const Real second_order = 100 * kUnitRoundoff;
  EXPECT_LE(Real("0.26") + 1 + others + second_order, Real("1.8"));
  EXPECT_LE(Real("0.26") + (Real(1) / 2 + others) / Real("0.707") + second_order, Real("1.8"));
}

TEST(Exponentiate, HasTheSameBitsAtEveryInstructionSetLevel) {
  ASSERT_TRUE(is_available(InstructionSet::generic));
  ASSERT_TRUE(is_available(instruction_set()));
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<double> numbers = numbers_of_all_regimes(seed);
    numbers.resize(numbers.size() - seed % 17);
    numbers.insert(numbers.end(), {-kInfinity, 1e300, 0.0, -0.0});
    const double shift = Random(seed).uniform(-3, 3);
    const std::vector<uint64_t> generic = bits(exponentials(numbers, shift, InstructionSet::generic));
    const double sum = exponential_sum(numbers, shift, InstructionSet::generic);
    for (const InstructionSet level : available_levels()) {
      EXPECT_EQ(bits(exponentials(numbers, shift, level)), generic) << name(level);
      EXPECT_EQ(exponential_sum(numbers, shift, level), sum) << name(level);
      std::vector<double> copy = numbers;
      EXPECT_EQ(exponentiate(copy, shift, level), sum) << name(level);
    }
  }
}

RC_GTEST_PROP(ExponentiateProperty, GivesEqualNumbersEqualBitsWhereverTheyStand, ()) {
  const std::vector<double> numbers = test::numbers(*test::dyadics(1, 60, 700));
  std::vector<double> together = numbers;
  exponentiate(together, 0.5);
  for (size_t i = 0; i < numbers.size(); ++i) {
    double alone = numbers[i];
    exponentiate({&alone, 1}, 0.5);
    RC_ASSERT(std::bit_cast<uint64_t>(together[i]) == std::bit_cast<uint64_t>(alone));
  }
}

}  // namespace
}  // namespace kvbound::reference::exponential_test
