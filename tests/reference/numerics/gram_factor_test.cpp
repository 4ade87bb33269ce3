// What holds of any factor of a Gram matrix, of factors that rounding has moved.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/numerics/gram_factor.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::gram_factor_test {
namespace {

using test::matrix;
using test::Random;
using Numbers = std::vector<double>;

// The factor of W W^T with its diagonal increased as it has to be, column by column from what is left of the
// matrix, whose every number is first moved by as much as sums of so many products may be off. Its pivots
// have to be positive, or zero with a row of W.
Matrix factor_of(MatrixView w, Random& random) {
  const int64_t n = w.rows;
  const double moved = static_cast<double>(w.cols) * 0x1p-53;
  Matrix rest(n, n), factor(n, n);
  multiply_transposed(w, w, rest.view());
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t c = 0; c <= k; ++c) {
      rest(k, c) += moved * random.uniform(-1, 1) * norm(w.row(k)) * norm(w.row(c));
      if (c == k) rest(k, c) *= 1 + gram_shift(n, w.cols);
    }
  }
  for (int64_t c = 0; c < n; ++c) {
    EXPECT_TRUE(rest(c, c) > 0 || (rest(c, c) == 0 && norm(w.row(c)) == 0)) << "pivot " << c;
    const double root = std::sqrt(rest(c, c));
    for (int64_t k = c; k < n; ++k) factor(k, c) = root > 0 ? rest(k, c) / root : 0;
    for (int64_t k = c + 1; k < n; ++k) {
      for (int64_t i = c + 1; i <= k; ++i) rest(k, i) -= factor(k, c) * factor(i, c);
    }
  }
  return factor;
}

// Rows that are the same but for a share of themselves.
Matrix nearly_equal_rows(int64_t rows, int64_t columns, double share, Random& random) {
  const Matrix one = random.matrix(1, columns), others = random.matrix(rows, columns);
  Matrix result(rows, columns);
  for (int64_t k = 0; k < rows; ++k) {
    for (int64_t m = 0; m < columns; ++m) result(k, m) = one(0, m) + share * others(k, m);
  }
  return result;
}

std::vector<Matrix> matrices(Random& random) {
  std::vector<Matrix> all{matrix({{3, 4}}), matrix({{1, 2}, {0, 0}, {2, 4}}), random.matrix(12, 40),
                          random.matrix(20, 5)};
  for (const double share : {0.0, 1e-12, 1e-8, 1e-6, 1e-4, 1e-2})
    all.push_back(nearly_equal_rows(9, 30, share, random));
  return all;
}

// Values, among them some whose numbers add up to nothing.
Matrix values(int64_t inner, Random& random) {
  Matrix all = random.matrix(12, inner);
  for (int64_t j = 0; j < all.rows(); j += 2) {
    double mean = 0;
    for (const double x : all.row(j)) mean += x / static_cast<double>(inner);
    for (double& x : all.row(j)) x -= mean;
  }
  return all;
}

double whole(VectorView x, MatrixView w) {
  double sum = 0;
  for (int64_t k = 0; k < w.rows; ++k) sum += std::abs(x[static_cast<size_t>(k)]) * norm(w.row(k));
  return sum;
}

Numbers norms(MatrixView rows, MatrixView by) {
  Matrix products(rows.rows, by.cols);
  multiply(rows, by, products.view());
  Numbers norms;
  for (int64_t j = 0; j < rows.rows; ++j) norms.push_back(norm(products.row(j)));
  return norms;
}

TEST(GramFactor, ExistsAndKeepsNormsThoughTheGramMatrixRounds) {
  Random random(5);
  for (const Matrix& w : matrices(random)) {
    const Matrix rows = values(w.rows(), random);
    const Matrix factor = factor_of(w, random);
    const Numbers exact = norms(rows, w), by_factor = norms(rows, factor);
    for (int64_t j = 0; j < rows.rows(); ++j) {
      const auto at = static_cast<size_t>(j);
      const double off = gram_factor_error(w.rows(), w.cols()) * std::pow(whole(rows.row(j), w), 2);
      EXPECT_LE(std::abs(by_factor[at] * by_factor[at] - exact[at] * exact[at]), off);
    }
  }
}

TEST(GramFactor, SizesHoldOfFactorsThatRoundingHasMoved) {
  Random random(6);
  int64_t smaller = 0;
  for (const Matrix& w : matrices(random)) {
    const Matrix rows = values(w.rows(), random);
    const Numbers sizes = GramFactor(w).sizes(rows);
    for (int trial = 0; trial < 5; ++trial) {
      const Matrix factor = factor_of(w, random);
      const Numbers own = norms(absolute(rows), absolute(factor));
      for (int64_t j = 0; j < rows.rows(); ++j) {
        const double all = whole(rows.row(j), w);
        EXPECT_LE(own[static_cast<size_t>(j)], sizes[static_cast<size_t>(j)] * (1 + 1e-12));
        EXPECT_LE(sizes[static_cast<size_t>(j)], all * (1 + 1e-12));
        smaller += static_cast<int64_t>(sizes[static_cast<size_t>(j)] < 0.99 * all);
      }
    }
  }
  EXPECT_GE(smaller, 5 * 12) << "as those of the values of rows that are nearly orthogonal";
}

TEST(GramFactor, SizesAreThoseOfItsNumbers) {
  const Matrix rows = matrix({{1, -2}, {0, 0}, {0, 3}});
  const Numbers orthogonal = GramFactor(matrix({{3, 0}, {0, 4}})).sizes(rows);
  EXPECT_NEAR(orthogonal[0], std::hypot(3, 8), 1e-9);
  EXPECT_EQ(orthogonal[1], 0);
  EXPECT_NEAR(orthogonal[2], 12, 1e-9);
  // L's rows are (5, 0) and (3, 4).
  EXPECT_NEAR(GramFactor(matrix({{3, 4}, {5, 0}})).sizes(rows)[0], std::hypot(5 + 2 * 3, 2 * 4), 1e-9);
}

// Of rows (1, 0) and (1, h) the inverse of the factor's rows, each of length 1, has squares of
// 1 + (c^2 + 1) / s^2 for the cosine c and the sine s of their angle.
TEST(GramFactor, SizesLeaveRoomForWhatASmallPivotMoves) {
  const double h = 0.01, length = std::hypot(1, h), s = h / length, c = 1 / length;
  const Matrix rows = matrix({{2, 1}});
  const double moved = 4 * 2 * gram_shift(2, 2) * (1 + (c * c + 1) / (s * s));
  const double deviation = std::sqrt(2.0) * moved / (1 + std::sqrt(1 - 2 * moved));
  const double size = GramFactor(matrix({{1, 0}, {1, h}})).sizes(rows)[0];
  const double room = (size - std::hypot(3, h)) / (2 + length);
  EXPECT_GE(room, deviation);
  EXPECT_LE(room, 1.05 * deviation);
}

TEST(GramFactor, SizesAreAllTermsWhereTheFactorIsUncertain) {
  const Matrix rows = matrix({{1, -2, 1}, {0, 0, 0}});
  EXPECT_EQ(GramFactor(matrix({{3, 4}, {-3, -4}, {0, 0}})).sizes(rows), (Numbers{15, 0}));
}

}  // namespace
}  // namespace kvbound::reference::gram_factor_test
