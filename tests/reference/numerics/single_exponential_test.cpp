#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/numerics/single_exponential.hpp>

#include "support/exponential_terms.hpp"
#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference::single_exponential_test {
namespace {

using oracle::Real;
using test::available_levels;
using test::Random;
using Constants = SingleExponentialConstants;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const Real kUnitRoundoff = ldexp(Real(1), -24);

float exponential(float x) {
  exponentiate({&x, 1}, 0);
  return x;
}

// All floats between two of one sign, but for those between every `stride`-th.
std::vector<float> floats(float from, float to, uint32_t stride) {
  std::vector<float> numbers;
  for (auto bits = std::bit_cast<uint32_t>(from); bits < std::bit_cast<uint32_t>(to); bits += stride) {
    numbers.push_back(std::bit_cast<float>(bits));
  }
  return numbers;
}

// The exponential in double precision is off by less than a millionth of the bound.
void require_within_the_bound(const std::vector<float>& arguments) {
  std::vector<float> results = arguments;
  exponentiate(results, 0);
  for (size_t i = 0; i < results.size(); ++i) {
    const double exact = std::exp(double{arguments[i]});
    const double bound = 1.9 * 0x1p-24 * exact + (exact < 0x1p-126 ? 0x1p-150 : 0);
    ASSERT_LE(std::abs(results[i] - exact), bound * (1 + 1e-6))
        << std::hexfloat << "exp(" << arguments[i] << ")";
  }
}

TEST(SingleExponentiate, IsWithinItsBound) {
  require_within_the_bound(floats(0.0F, 88.72283F, 4099));
  require_within_the_bound(floats(-0.0F, -106.0F, 4099));
  for (int k = -150; k <= 127; ++k) {  // where the multiple of ln 2 changes
    const auto x = static_cast<float>((k + 0.5) * std::log(2.0));
    require_within_the_bound({std::nextafter(x, -kInfinity), x, std::nextafter(x, kInfinity)});
  }
}

TEST(SingleExponentiate, IsOfTheDifferenceAndReturnsTheSum) {
  std::vector<float> numbers(37, 3);
  numbers[5] = numbers[36] = -kInfinity;
  EXPECT_EQ(exponentiate(numbers, 3), 35);
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], i == 5 || i == 36 ? 0 : 1);
  EXPECT_EQ(exponentiate(std::span<float>(), 1.0F), 0);
}

TEST(SingleExponentiate, SumsInDoublePrecision) {
  std::vector<float> numbers(1001, -20);
  numbers[500] = 0;
  const double small = exponential(-20);
  EXPECT_NEAR(exponentiate(numbers, 0), 1 + 1000 * small, 1e-12);
}

TEST(SingleExponentiate, GoesToZeroAndInfinityWhereTheExponentialDoes) {
  for (const float x : {-104.0F, -105.0F, -1e30F, -kInfinity}) EXPECT_EQ(exponential(x), 0) << x;
  for (const float x : {88.7229F, 89.0F, 90.0F, 1e30F, kInfinity}) EXPECT_EQ(exponential(x), kInfinity) << x;
  EXPECT_EQ(exponential(0), 1);
  EXPECT_EQ(exponential(-0.0F), 1);
}

TEST(SingleExponentiate, LeavesNanNan) {
  for (const InstructionSet level : available_levels()) {
    std::vector<float> numbers(37, 0);
    numbers[5] = numbers[36] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(exponentiate(numbers, 0, level)));
    for (size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_EQ(std::isnan(numbers[i]), i == 5 || i == 36) << name(level);
    }
  }
}

TEST(SingleExponentiate, HasTheSameBitsAtEveryLevelAndEveryPlace) {
  Random random(1);
  std::vector<float> numbers;
  for (int i = 0; i < 211; ++i) numbers.push_back(static_cast<float>(random.uniform(-110, 60)));
  std::vector<float> generic = numbers;
  const double sum = exponentiate(generic, 0.5F, InstructionSet::generic);
  for (const InstructionSet level : available_levels()) {
    std::vector<float> own = numbers;
    EXPECT_EQ(exponentiate(own, 0.5F, level), sum) << name(level);
    EXPECT_EQ(own, generic) << name(level);
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    exponentiate({&numbers[i], 1}, 0.5F);
    EXPECT_EQ(numbers[i], generic[i]);
  }
}

// Every number that the doc comment rests on, as ExponentiateBound has them for double precision.
TEST(SingleExponentiateBound, IsWhatItsDerivationSays) {
  const auto [most_k, r, q, q_error, left_out] = test::exponential_terms<Constants>(kUnitRoundoff);
  const Real ln2 = log(Real(2)), high = Constants::kLn2High, low = Constants::kLn2Low;
  ASSERT_LE(most_k, 255) << "8 bits";
  EXPECT_EQ(ldexp(high, 15), floor(ldexp(high, 15))) << "k ln2_high has 8 + 15 bits";
  EXPECT_LT(r + most_k * abs(low), Real(1) / 2);
  // k ln2_low: the error of the constant and of the product; the difference is rounded below 1/2.
  const Real low_error = most_k * (abs(ln2 - high - low) + kUnitRoundoff * abs(low));
  const Real reduction = (ldexp(Real(1), -26) + low_error) / kUnitRoundoff;
  EXPECT_LE(reduction, Real("0.26"));
  EXPECT_LT(left_out, Real("0.1"));
  const Real others = left_out + r * r * (q_error + 2 * q) + Real(1) / 4, second_order = 100 * kUnitRoundoff;
  EXPECT_LE(reduction + 1 + others + second_order, Real("1.9"));
  EXPECT_LE(reduction + (Real(1) / 2 + others) / Real("0.707") + second_order, Real("1.9"));
}

}  // namespace
}  // namespace kvbound::reference::single_exponential_test
