// Error bounds of double precision: no evaluation that the model allows is farther from the exact value,
// and one is nearly as far.
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/bounded.hpp>

#include "support/random_layer.hpp"

namespace kvbound::oracle::bounded_test {
namespace {

using Positions = std::vector<int64_t>;

const Real kRoundoff = ldexp(Real(1), -53);
const Real kUnderflow = ldexp(Real(1), -1074);

// The operand at either end of its bound.
Reals ends(const Bounded& operand) { return {operand.value - operand.bound, operand.value + operand.bound}; }

// The result, rounded away from 0.
Real rounded_up(const Real& result) {
  return result + (result < 0 ? -1 : 1) * (kRoundoff * abs(result) + kUnderflow);
}

// The largest distance of an evaluation from the exact value, for operands at the ends of their bounds.
template <class Operation>
Real farthest(const Operation& operation, const Bounded& a, const Bounded& b) {
  Real distance = 0;
  for (const Real& x : ends(a)) {
    for (const Real& y : ends(b))
      distance = std::max<Real>(distance, abs(rounded_up(operation(x, y)) - operation(a.value, b.value)));
  }
  return distance;
}

// Whether the bound is at least `attained` and at most `slack` times as large.
testing::AssertionResult is_attained(const Bounded& number, const Real& attained, double slack) {
  if (attained <= number.bound * (1 + Real("1e-30")) && number.bound <= attained * slack)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << "bound " << number.bound.str(10) << ", attained " << attained.str(10);
}

const std::vector<Bounded> kOperands{{3, 0.25}, {-2, 0.5}, {0, 0.125}, {1e-200}, {-7}, {0}};

TEST(Bounded, SumsDifferencesAndProductsAttainTheirBounds) {
  for (const Bounded& a : kOperands) {
    for (const Bounded& b : kOperands) {
      const auto plus = [](const Real& x, const Real& y) { return Real(x + y); };
      const auto minus = [](const Real& x, const Real& y) { return Real(x - y); };
      const auto times = [](const Real& x, const Real& y) { return Real(x * y); };
      EXPECT_TRUE(is_attained(a + b, farthest(plus, a, b), 1.000001)) << a.value << " + " << b.value;
      EXPECT_TRUE(is_attained(a - b, farthest(minus, a, b), 1.000001)) << a.value << " - " << b.value;
      EXPECT_TRUE(is_attained(a * b, farthest(times, a, b), 1.000001)) << a.value << " * " << b.value;
    }
  }
}

TEST(Bounded, QuotientsAttainTheirBounds) {
  const auto over = [](const Real& x, const Real& y) { return Real(x / y); };
  for (const Bounded& a : kOperands) {
    for (const Bounded& b : {Bounded(3, 0.25), Bounded(-2, 1.5), Bounded(4)})
      EXPECT_TRUE(is_attained(a / b, farthest(over, a, b), 1.000001)) << a.value << " / " << b.value;
  }
  EXPECT_THROW(Bounded(1) / Bounded(0.5, 0.5), std::domain_error) << "the divisor may be 0";
  EXPECT_THROW(Bounded(1) / Bounded(0), std::domain_error);
}

TEST(Bounded, ExponentialsRoundTwice) {
  for (const double error : {0.0, 0x1p-40, 0x1p-10, 1.0}) {
    const Real exact = exp(Real(2)), attained = (1 + 2 * kRoundoff) * exp(Real(2) + error) - exact;
    EXPECT_TRUE(is_attained(exp(Bounded(2, error)), attained, 1.2)) << error;
  }
  EXPECT_THROW(exp(Bounded(2, 1.5)), std::domain_error) << "nothing is known of its size";
}

TEST(Bounded, LogarithmsRoundTwice) {
  for (const double error : {0.0, 0x1p-40, 1.0}) {
    const Real attained = abs(log(Real(2) - error) - log(Real(2))) + 2 * kRoundoff * log(Real(2));
    EXPECT_TRUE(is_attained(log(Bounded(2, error)), attained, 1.5)) << error;
  }
  EXPECT_THROW(log(Bounded(2, 2)), std::domain_error) << "the argument may be 0";
}

TEST(Bounded, SquareRootsReachZero) {
  for (const double error : {0.0, 0.01, 2.0}) {
    const Real root = sqrt(Real(2)), attained = root - sqrt(Real(2) - error) + kRoundoff * root;
    EXPECT_TRUE(is_attained(sqrt(Bounded(2, error)), attained, 2.1)) << error;
  }
  EXPECT_TRUE(is_attained(sqrt(Bounded(0, 0.25)), rounded_up(0.5), 1.000001));
}

TEST(Bounded, SumsRoundOnceLessThanTheyHaveTerms) {
  EXPECT_EQ(sum(Row{}).bound, 0);
  EXPECT_EQ(sum(Row{Bounded(3)}).bound, 0);
  EXPECT_TRUE(is_attained(sum(Row{{1, 0.5}, {1, 0.25}}), rounded_up(2.75) - 2, 1.000001));
  EXPECT_TRUE(is_attained(sum(Row{1, 1, 1}), rounded_up(rounded_up(2) + 1) - 3, 1.25));
  const Bounded cancelled = sum(Row{3, 1, -4});
  EXPECT_EQ(cancelled.value, 0);
  EXPECT_GE(cancelled.bound, rounded_up(4) - 4);
}

TEST(Bounded, DotProductsRoundOnceForEachTerm) {
  EXPECT_TRUE(is_attained(dot(Row{{3, 0.25}}, Row{{-2, 0.5}}), rounded_up(Real(3.25) * 2.5) - 6, 1.000001));
  const Real products = rounded_up(6) + rounded_up(20);
  EXPECT_TRUE(is_attained(dot(Row{3, 4}, Row{2, 5}), rounded_up(products) - 26, 1.000001));
  EXPECT_GE(dot(Row{3, 4}, Row{4, -3}).bound, 2 * (rounded_up(12) - 12)) << "terms that cancel";
  EXPECT_GE(dot(Row{0x1p-540}, Row{0x1p-540}).bound, kUnderflow) << "a product that underflows";
  EXPECT_THROW(dot(Row{1}, Row{1, 2}), std::invalid_argument);
}

TEST(Bounded, RoundingsAreThoseOfDoublePrecision) {
  EXPECT_EQ(unit_roundoff(), Real(std::numeric_limits<double>::epsilon()) / 2);
  EXPECT_EQ(gamma(int64_t{1} << 52), 1) << "k u / (1 - k u)";
  EXPECT_EQ(rounded(0, 0).bound, Real(std::numeric_limits<double>::denorm_min()));
  EXPECT_EQ(rounded(4, 2, 3).bound, 2 + 3 * (6 * kRoundoff + kUnderflow))
      << "what is carried is rounded, too";
  for (const Bounded& number : exactly(test::matrix({{0.1, -3}}).row(0))) EXPECT_EQ(number.bound, 0);
}

TEST(Entries, OutsideAreTheOthersInWhateverOrderTheIndicesAre) {
  const Reals numbers{1, 2, 4, 8};
  for (const Positions& indices : {Positions{0, 3}, Positions{3, 0}, Positions{3, 0, 3}})
    EXPECT_EQ(outside(numbers, indices), (Reals{2, 4}));
  EXPECT_EQ(at(numbers, Positions{3, 0}), (Reals{8, 1})) << "in the order of the indices";
}

TEST(IndexSet, AscendsAndHasNothingTwice) {
  for (const Positions& set : {Positions{}, Positions{3}, Positions{0, 2, 3}}) EXPECT_TRUE(is_ascending(set));
  for (const Positions& no_set : {Positions{2, 0}, Positions{0, 0}, Positions{0, 3, 2}})
    EXPECT_FALSE(is_ascending(no_set));
}

TEST(Rows, HaveColumnsMeansAndWeightedSums) {
  const RowsOf<Real> rows{{1, 2}, {3, 6}};
  EXPECT_EQ(column(rows, 1), (Reals{2, 6}));
  EXPECT_EQ(mean(rows), (Reals{2, 4}));
  EXPECT_EQ(weighted_sum(Reals{2, -1}, rows), (Reals{-1, -2}));
}

}  // namespace
}  // namespace kvbound::oracle::bounded_test
