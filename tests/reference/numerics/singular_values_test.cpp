#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/numerics/singular_values.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::singular_values_test {
namespace {

using test::matrix;
using test::Random;

using Numbers = std::vector<double>;

// The rounding of reflections and rotations for numbers of about 1.
constexpr double kRounding = 1e-14;

void expect_numbers(const Numbers& actual, const Numbers& expected, double rounding = kRounding) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t c = 0; c < actual.size(); ++c) EXPECT_NEAR(actual[c], expected[c], rounding) << c;
}

// Reflects every column of a matrix: (1 - 2 v v^T / v^T v) matrix.
void reflect_columns(Matrix& matrix, const Numbers& v) {
  double squares = 0;
  for (const double number : v) squares += number * number;
  for (int64_t c = 0; c < matrix.cols(); ++c) {
    double product = 0;
    for (int64_t i = 0; i < matrix.rows(); ++i) product += v[i] * matrix(i, c);
    for (int64_t i = 0; i < matrix.rows(); ++i) matrix(i, c) -= 2 * product / squares * v[i];
  }
}

// A dense [rows, sigmas] matrix with these singular values: a diagonal matrix, reflected on both sides.
Matrix with_singular_values(int64_t rows, const Numbers& sigmas, uint64_t seed) {
  const auto cols = std::ssize(sigmas);
  Random random(seed);
  const auto direction = [&](int64_t size) {
    Numbers v(size);
    for (double& number : v) number = random.normal();
    return v;
  };
  Matrix transposed(cols, cols);
  for (int64_t c = 0; c < cols; ++c) transposed(c, c) = sigmas[c];
  reflect_columns(transposed, direction(cols));
  Matrix result(rows, cols);
  for (int64_t i = 0; i < cols; ++i) {
    for (int64_t c = 0; c < cols; ++c) result(i, c) = transposed(c, i);
  }
  reflect_columns(result, direction(rows));
  return result;
}

TEST(SingularValues, AreAtLeastZeroAndTheLargestFirst) {
  expect_numbers(singular_values(matrix({{0, 2}, {-5, 0}, {0, 0}})), {5, 2});
  expect_numbers(singular_values(matrix({{3, 4}, {6, 8}})), {std::sqrt(125.0), 0});
}

TEST(SingularValues, OfAnEmptyMatrixAreNone) {
  EXPECT_TRUE(singular_values(Matrix(0, 3)).empty());
  EXPECT_TRUE(singular_values(Matrix(3, 0)).empty());
}

TEST(SingularValues, OfTallMatricesAreThoseTheyWereMadeOf) {
  // Around one and two blocks of rows. The square root of a Gram matrix's eigenvalue would
  // miss 1e-9 by about 1e-8.
  const Numbers sigmas{3, 1, 1e-3, 1e-9, 0};
  for (const int64_t rows : {5, 12, 511, 512, 513, 1023, 1024, 1025, 3000}) {
    SCOPED_TRACE(rows);
    expect_numbers(singular_values(with_singular_values(rows, sigmas, static_cast<uint64_t>(rows))), sigmas);
  }
}

TEST(SingularValues, OfRepeatedRowsGrowWithTheRootOfTheirNumber) {
  const Matrix part = Random(3).matrix(40, 7);
  const Numbers once = singular_values(part);
  for (const int64_t root : {10, 100}) {  // of the number of copies: 8 and 782 blocks of rows
    Matrix repeated(0, 7);
    for (int64_t copy = 0; copy < root * root; ++copy) {
      for (int64_t i = 0; i < part.rows(); ++i) repeated.append_row(part.row(i));
    }
    const Numbers often = singular_values(repeated);
    ASSERT_EQ(often.size(), once.size());
    const auto factor = static_cast<double>(root);
    for (size_t c = 0; c < once.size(); ++c)
      EXPECT_NEAR(often[c], factor * once[c], 10 * factor * kRounding * once[0]) << c;
  }
}

TEST(SingularValues, OfATransposedMatrixAreTheSame) {
  const Matrix tall = Random(4).matrix(700, 9);
  Matrix wide(9, 700);
  for (int64_t i = 0; i < tall.rows(); ++i) {
    for (int64_t c = 0; c < tall.cols(); ++c) wide(c, i) = tall(i, c);
  }
  const Numbers expected = singular_values(wide);
  expect_numbers(singular_values(tall), expected, 10 * kRounding * expected[0]);
}

}  // namespace
}  // namespace kvbound::reference::singular_values_test
