#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/proofs/oracle/merge_bounds.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/numerics/pseudo_inverse.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference::pseudo_inverse_test {
namespace {

using oracle::Bounded;
using oracle::exactly;
using oracle::Real;
using oracle::within;
using test::matrix;
using test::message_of;
using test::Random;

using Numbers = std::vector<double>;

// The rounding of a few reflections and rotations for numbers of about 1.
constexpr double kRounding = 1e-14;

void expect_numbers(const Numbers& actual, const Numbers& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t c = 0; c < actual.size(); ++c) EXPECT_NEAR(actual[c], expected[c], kRounding) << c;
}

TEST(PseudoInverse, OfOneConditionGoesAlongIt) {
  const PseudoInverse inverse(matrix({{3, 4}}), 0.3);
  EXPECT_EQ(inverse.rank(), 1);
  expect_numbers(inverse.solve(Numbers{50}), {6, 8});  // 50 (3, 4) / 25
}

TEST(PseudoInverse, MeetsIndependentConditionsWithTheShortestVector) {
  // x = 2, y + z = 6: z = y.
  const PseudoInverse inverse(matrix({{1, 0, 0}, {0, 1, 1}}), 0.3);
  EXPECT_EQ(inverse.rank(), 2);
  expect_numbers(inverse.solve(Numbers{2, 6}), {2, 3, 3});
}

TEST(PseudoInverse, MeetsContradictionsInTheMiddle) {
  // x = 1, x = 5: least squares.
  const PseudoInverse inverse(matrix({{1, 0}, {1, 0}}), 0.3);
  EXPECT_EQ(inverse.rank(), 1);
  expect_numbers(inverse.solve(Numbers{1, 5}), {3, 0});
  // More conditions than unknowns: x = 1, 2 x = 2, x = 4.
  expect_numbers(PseudoInverse(matrix({{1}, {2}, {1}}), 0.3).solve(Numbers{1, 2, 4}), {1.5});
}

TEST(PseudoInverse, DropsSingularValuesBelowTheRankAndKeepsThoseAtIt) {
  // The singular values of a diagonal matrix are its entries.
  const Matrix rows = matrix({{4, 0, 0}, {0, 2, 0}, {0, 0, 1}});
  const Numbers targets{4, 2, 1};
  const auto solved = [&](double rank) { return PseudoInverse(rows, rank).solve(targets); };
  expect_numbers(solved(0), {1, 1, 1});
  expect_numbers(solved(0.25), {1, 1, 1});
  expect_numbers(solved(std::nextafter(0.25, 1)), {1, 1, 0});
  expect_numbers(solved(0.5), {1, 1, 0});
  expect_numbers(solved(0.51), {1, 0, 0});
  expect_numbers(solved(1), {1, 0, 0});
  EXPECT_EQ(PseudoInverse(matrix({{2, 0}, {0, 2}}), 1).rank(), 2) << "as large as the largest";
}

TEST(PseudoInverse, DropsWhatIsZeroButForRounding) {
  // Multiples of one row, rounded to doubles: the exact second singular value is 0, the
  // computed one is rounding.
  const Numbers row{0.1, 0.7, -1.3};
  for (const double factor : {3.0, -0.3, 1.0 / 7, 1e5}) {
    Matrix rows = matrix({row, row});
    for (double& number : rows.row(1)) number *= factor;
    const PseudoInverse inverse(rows, 0);
    EXPECT_EQ(inverse.rank(), 1) << factor;
    // The least-squares solution of x . row = 1 and factor x . row = -factor.
    const double length = (1 - factor * factor) / (1 + factor * factor) / (0.01 + 0.49 + 1.69);
    expect_numbers(inverse.solve(Numbers{1, -factor}), {0.1 * length, 0.7 * length, -1.3 * length});
  }
}

TEST(PseudoInverse, OfNothingIsNothing) {
  EXPECT_EQ(PseudoInverse(Matrix(2, 3), 0.3).solve(Numbers{1, 2}), Numbers(3, 0.0));
  EXPECT_EQ(PseudoInverse(Matrix(2, 3), 0).rank(), 0);
  EXPECT_EQ(PseudoInverse(Matrix(0, 3), 0.3).solve(Numbers{}), Numbers(3, 0.0));
  EXPECT_EQ(PseudoInverse(Matrix(2, 0), 0.3).solve(Numbers{1, 2}), Numbers());
}

TEST(PseudoInverse, DoesNotDependOnTheSizeOfItsConditions) {
  const Matrix rows = matrix({{3, 4}, {-1, 2}});
  const Numbers x = PseudoInverse(rows, 0.1).solve(Numbers{1, 2});
  for (const int exponent : {-900, -600, 600, 900}) {
    Matrix scaled = rows;
    for (int64_t i = 0; i < 2; ++i) {
      for (double& number : scaled.row(i)) number = std::ldexp(number, exponent);
    }
    const Numbers y = PseudoInverse(scaled, 0.1).solve(Numbers{1, 2});
    for (size_t c = 0; c < 2; ++c) EXPECT_NEAR(std::ldexp(y[c], exponent), x[c], kRounding) << exponent;
  }
}

TEST(PseudoInverse, NamesWhatDoesNotFitOrIsNoNumber) {
  EXPECT_EQ(message_of<ShapeMismatch>([] {
              PseudoInverse(matrix({{1, 2}}), 0).solve(Numbers{1, 2});
            }),
            "targets is 2 but conditions is 1");
  EXPECT_EQ(message_of<ShapeMismatch>([] { PseudoInverse(Matrix(2, 3), 0).solve(Numbers{1}); }),
            "targets is 1 but conditions is 2");
  EXPECT_EQ(message_of<NonFinite>([] {
              PseudoInverse(matrix({{1, std::nan("")}}), 0);
            }),
            "conditions[1] is nan");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(message_of<NonFinite>([&] { PseudoInverse(matrix({{infinity}}), 0); }), "conditions[0] is inf");
}

// ---- against 50 digits

// Rows whose singular values fall to 1/condition of the largest.
Matrix rows_of_condition(Random& random, int64_t count, int64_t unknowns, double condition) {
  Matrix rows = random.matrix(count, unknowns);
  for (int64_t i = 1; i < count; ++i) {
    const double share = std::pow(condition, -random.uniform(0, 1));
    for (int64_t c = 0; c < unknowns; ++c) rows(i, c) = rows(0, c) + share * rows(i, c);
  }
  return rows;
}

RC_GTEST_PROP(PseudoInverseProperty, MeetsItsDefinition, ()) {
  Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const int64_t count = *test::integer(1, 6), unknowns = *test::integer(1, 12);
  const int64_t digits = *test::integer(0, 7);
  const double rank = *rc::gen::element(0.0, 1e-6, 0.1, 0.3, 0.9, 1.0);
  const Matrix rows = rows_of_condition(random, count, unknowns, std::pow(10, static_cast<double>(digits)));
  const Matrix targets = random.matrix(1, count);
  const oracle::BoundedInverse exact(exactly(rows.view()));
  const std::vector<size_t> ranks = exact.ranks(rank);
  const auto directions = static_cast<int64_t>(ranks.front());
  const auto expected = exact.solution(exactly(VectorView(targets.row(0))), ranks.front());
  RC_PRE(ranks.size() == 1 && expected);
  RC_CLASSIFY(directions == 1, "one direction");
  RC_CLASSIFY(directions > 1 && directions < std::min(count, unknowns), "some dropped");
  RC_CLASSIFY(directions == std::min(count, unknowns) && count > 1, "all kept");
  RC_CLASSIFY(count > unknowns, "more conditions than unknowns");
  const PseudoInverse inverse(rows, rank);
  RC_ASSERT(inverse.rank() == directions);
  const Numbers x = inverse.solve(targets.row(0));
  for (size_t c = 0; c < x.size(); ++c) RC_ASSERT(bool(within(x[c], (*expected)[c])));
}

// The oracle is not a copy of the tested code: its solution has the properties that
// define the pseudo-inverse.
TEST(PseudoInverseOracle, IsInTheRowsSpaceAndMeetsTheConditions) {
  Random random(7);
  for (const int64_t count : {1, 2, 4}) {
    const Matrix rows = random.matrix(count, 5), targets = random.matrix(1, count);
    const oracle::BoundedInverse inverse(exactly(rows.view()));
    const auto rank = static_cast<size_t>(count);
    ASSERT_EQ(inverse.ranks(0), std::vector{rank});
    const auto solution = inverse.solution(exactly(VectorView(targets.row(0))), rank);
    ASSERT_TRUE(solution);
    for (int64_t i = 0; i < count; ++i) {
      Real product = 0;
      for (size_t c = 0; c < 5; ++c) product += (*solution)[c].value * rows.row(i)[c];
      EXPECT_LT(abs(product - targets(0, i)), Real("1e-40"));
    }
    // The solution is the shortest of all that meet the conditions: any other vector with the
    // same products is longer.
    const Matrix more = random.matrix(1, 5);
    Numbers products;
    for (int64_t i = 0; i < count; ++i) {
      double product = 0;
      for (int64_t c = 0; c < 5; ++c) product += rows(i, c) * more(0, c);
      products.push_back(product);
    }
    const auto shortest = inverse.solution(exactly(VectorView(products)), rank);
    Real length = 0, other = 0;
    for (size_t c = 0; c < 5; ++c) {
      length += (*shortest)[c].value * (*shortest)[c].value;
      other += Real(more.row(0)[c]) * more.row(0)[c];
    }
    EXPECT_LT(length, other);
  }
}

}  // namespace
}  // namespace kvbound::reference::pseudo_inverse_test
