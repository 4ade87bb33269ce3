#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/study/effective_rank.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::effective_rank_test {
namespace {

using test::matrix;
using test::message_of;
using test::Random;

Matrix times(Matrix numbers, double factor) {
  for (int64_t i = 0; i < numbers.rows(); ++i) {
    for (double& number : numbers.row(i)) number *= factor;
  }
  return numbers;
}

// The matrix times (1 - 2 v v^T / v^T v), which is orthogonal.
Matrix reflected(Matrix numbers, const std::vector<double>& v) {
  double squares = 0;
  for (const double number : v) squares += number * number;
  for (int64_t i = 0; i < numbers.rows(); ++i) {
    double product = 0;
    for (size_t c = 0; c < v.size(); ++c) product += numbers.row(i)[c] * v[c];
    for (size_t c = 0; c < v.size(); ++c) numbers.row(i)[c] -= 2 * product / squares * v[c];
  }
  return numbers;
}

void expect_rank(const EffectiveRank& rank, double effective, double stable, double relative = 1e-13) {
  EXPECT_NEAR(rank.effective, effective, relative * effective);
  EXPECT_NEAR(rank.stable, stable, relative * stable);
}

TEST(EffectiveRank, OfEqualSingularValuesIsTheirNumber) {
  expect_rank(effective_rank(matrix({{1, 0, 0}, {0, 1, 0}, {0, 0, 1}})), 3, 3);
  expect_rank(effective_rank(matrix({{0, 2, 0}, {-2, 0, 0}})), 2, 2);
}

TEST(EffectiveRank, OfMultiplesOfOneRowIsOne) {
  expect_rank(effective_rank(matrix({{1, 2, 3}, {-2, -4, -6}, {0, 0, 0}})), 1, 1);
  expect_rank(effective_rank(matrix({{5}, {-1}})), 1, 1);
}

TEST(EffectiveRank, IsTheEntropyOfNormalisedSingularValues) {
  // p = (3/4, 1/4): exp(H) = 4 / 3^(3/4); by the squares of sigma it would be another.
  expect_rank(effective_rank(matrix({{3, 0}, {0, 1}})), 4 / std::pow(3, 0.75), 10.0 / 9);
}

TEST(EffectiveRank, OfZerosIsZero) {
  for (const Matrix& zeros : {Matrix(4, 3), Matrix(700, 3), Matrix(0, 3), Matrix(3, 0)}) {
    const EffectiveRank rank = effective_rank(zeros);
    EXPECT_EQ(rank.effective, 0);
    EXPECT_EQ(rank.stable, 0);
  }
}

TEST(EffectiveRank, DoesNotDependOnTheUnit) {
  for (const int64_t rows : {8, 700}) {
    const Matrix values = Random(5).matrix(rows, 6);
    const EffectiveRank expected = effective_rank(values);
    for (const double factor : {-1.0, 0.3, 1e-150, 1e150, 1e-290, 1e300}) {
      SCOPED_TRACE(factor);
      expect_rank(effective_rank(times(values, factor)), expected.effective, expected.stable);
    }
  }
}

TEST(EffectiveRank, CountsSmallSingularValues) {
  // One of 1 and 63 of 1e-9. Through the Gram matrix each of the 63 would come out as up to 1e-8.
  constexpr int64_t kRows = 1000, kCols = 64;
  Matrix values(kRows, kCols);
  for (int64_t c = 0; c < kCols; ++c) values(7 * c, c) = c == 0 ? 1 : 1e-9;
  std::vector<double> direction(kCols);
  Random random(6);
  for (double& number : direction) number = random.normal();
  const double sum = 1 + 63e-9, p = 1e-9 / sum;
  const double effective = std::exp(std::log(sum) / sum - 63 * p * std::log(p));
  expect_rank(effective_rank(reflected(values, direction)), effective, 1);
  EXPECT_GT(effective - 1, 1e-6) << "or it tests nothing";
}

TEST(EffectiveRank, RefusesWhatIsNotFinite) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message_of<NonFinite>([&] { effective_rank(matrix({{1, 2}, {3, kNan}})); }), "matrix[1] is nan");
}

RC_GTEST_PROP(EffectiveRankProperty, IsBetweenOneAndTheSmallerSideAndInvariantUnderReflections, ()) {
  const int64_t rows = *test::integer(1, 12), cols = *test::integer(1, 6);
  Matrix values(rows, cols);
  double largest = 0;
  const auto draws = *test::dyadics(rows * cols, rows * cols, 8);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < cols; ++c) {
      values(i, c) = draws[i * cols + c].value;
      largest = std::max(largest, std::abs(values(i, c)));
    }
  }
  RC_PRE(largest > 0);
  const EffectiveRank rank = effective_rank(values);
  const auto most = static_cast<double>(std::min(rows, cols));
  RC_ASSERT(rank.effective >= 1 - 1e-14 && rank.effective <= most);
  RC_ASSERT(rank.stable >= 1 - 1e-14 && rank.stable <= most);
  Random random(static_cast<uint64_t>(*test::integer(0, 1000)));
  std::vector<double> direction(cols);
  for (double& number : direction) number = random.normal() + 0.1;
  const EffectiveRank other = effective_rank(reflected(times(values, 0.37), direction));
  RC_ASSERT(std::abs(other.effective - rank.effective) <= 1e-11);
  RC_ASSERT(std::abs(other.stable - rank.stable) <= 1e-11);
}

}  // namespace
}  // namespace kvbound::sim::effective_rank_test
