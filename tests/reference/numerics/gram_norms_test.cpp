#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/definitions.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/numerics/gram_norms.hpp>
#include <kvbound/reference/numerics/row_norms.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::gram_norms_test {
namespace {

using test::matrix;
using test::Random;
using Numbers = std::vector<double>;

Numbers by_gram(MatrixView rows, MatrixView factor) {
  Matrix products(rows.rows, rows.cols);
  Numbers norms(rows.rows);
  GramNorms(factor).fill(rows, products.view(), norms);
  return norms;
}

// || x W || in 50 digits, whose own rounding does not matter here.
std::vector<oracle::Real> exact_norms(MatrixView rows, MatrixView factor) {
  std::vector<oracle::Real> norms;
  for (const oracle::Bounded& norm : oracle::projected_value_norms(rows, factor, Norm::l2))
    norms.push_back(norm.value);
  return norms;
}

double relative_error(double computed, const oracle::Real& exact) {
  return static_cast<double>(abs(computed - exact) / exact);
}

TEST(GramNorms, AreThoseOfTheProduct) {
  EXPECT_EQ(by_gram(matrix({{1, 0}, {0, -2}}), matrix({{3, -4}, {1, 1}})), (Numbers{5, std::sqrt(8.0)}));
}

TEST(GramNorms, OfNormalNumbersAreAllAccepted) {
  Random random(1);
  for (const auto& [inner, columns] : {std::pair<int64_t, int64_t>{1, 1}, {7, 30}, {64, 256}, {128, 700}}) {
    const Matrix rows = random.matrix(20, inner), factor = random.matrix(inner, columns);
    const Numbers norms = by_gram(rows, factor);
    const std::vector<oracle::Real> exact = exact_norms(rows, factor);
    for (size_t i = 0; i < norms.size(); ++i)
      EXPECT_LE(relative_error(norms[i], exact[i]), kGramNormError) << inner;
  }
}

// Rows that are nearly cancelled: the shorter the difference, the less of x G x^T is left.
TEST(GramNorms, AreRefusedWhereTheyWouldBeWrong) {
  Random random(2);
  const int64_t inner = 8, columns = 40;
  int64_t accepted = 0, refused = 0, worse = 0;
  for (int k = 0; k < 50; ++k) {
    Matrix factor = random.matrix(inner, columns);
    for (int64_t c = 1; c < inner; ++c) {
      for (int64_t j = 0; j < columns; ++j) factor(c, j) = factor(0, j) + std::ldexp(factor(c, j), -k);
    }
    Matrix rows = random.matrix(16, inner);
    for (int64_t i = 0; i < rows.rows(); ++i) {  // the sum of a row is nearly 0
      double sum = 0;
      for (int64_t c = 1; c < inner; ++c) sum += rows(i, c);
      rows(i, 0) = -sum;
    }
    const Numbers norms = by_gram(rows, factor), all = row_norms(rows, factor, Norm::l2);
    const std::vector<oracle::Real> exact = exact_norms(rows, factor);
    const Matrix gram = [&] {
      Matrix product(inner, inner);
      for (int64_t a = 0; a < inner; ++a) {
        for (int64_t b = 0; b < inner; ++b) {
          for (int64_t j = 0; j < columns; ++j) product(a, b) += factor(a, j) * factor(b, j);
        }
      }
      return product;
    }();
    for (int64_t i = 0; i < rows.rows(); ++i) {
      double square = 0;
      for (int64_t a = 0; a < inner; ++a) {
        for (int64_t b = 0; b < inner; ++b) square += rows(i, a) * gram(a, b) * rows(i, b);
      }
      if (!(relative_error(std::sqrt(square), exact[i]) <= kGramNormError)) ++worse;
      std::isnan(norms[i]) ? ++refused : ++accepted;
      if (!std::isnan(norms[i])) {
        EXPECT_LE(relative_error(norms[i], exact[i]), kGramNormError) << k;
      }
      // What is refused is as accurate as the product: its terms are 2^k times as large as their sum.
      EXPECT_LE(relative_error(all[i], exact[i]), std::max(kGramNormError, std::ldexp(64, k - 53))) << k;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(worse, 100) << "the case tests something";
  EXPECT_GE(refused, worse);
}

TEST(GramNorms, AreRefusedWhereSquaresOverflowOrUnderflow) {
  const Matrix ones = matrix({{1, 1}, {1, -1}});
  EXPECT_TRUE(std::isnan(by_gram(matrix({{0x1p600, 0}}), ones)[0]));
  EXPECT_TRUE(std::isnan(by_gram(matrix({{0x1p-540, 0}}), ones)[0]));
  EXPECT_TRUE(std::isnan(by_gram(matrix({{0, 0}}), ones)[0]));
  EXPECT_TRUE(std::isnan(by_gram(matrix({{0x1p-500, 0}}), ones)[0])) << "where the bound underflows";
  EXPECT_DOUBLE_EQ(by_gram(matrix({{0x1p-470, 0}}), ones)[0], 0x1p-470 * std::sqrt(2.0));
  // W W^T underflows, although the norms are neither large nor small.
  const Matrix small = matrix({{0x1p-540, 0}, {0, 0x1p-535}}), large = matrix({{0x1p538, 0x1p535}});
  EXPECT_TRUE(std::isnan(by_gram(large, small)[0]));
  EXPECT_DOUBLE_EQ(row_norms(large, small, Norm::l2)[0], std::hypot(0.25, 1));
  EXPECT_EQ(row_norms(matrix({{0, 0}}), ones, Norm::l2)[0], 0);
  EXPECT_EQ(row_norms(matrix({{0x1p600, 0}}), ones, Norm::l2)[0], kInfinity);
}

TEST(GramNorms, AndDirectNormsOfOneBlockStayWhereTheyAre) {
  Random random(3);
  Matrix rows = random.matrix(300, 4);
  for (const int64_t zero : {0, 7, 255, 256, 299}) std::ranges::fill(rows.row(zero), 0.0);
  const Matrix factor = random.matrix(4, 600);
  const Numbers norms = row_norms(rows, factor, Norm::l2);
  const std::vector<oracle::Real> exact = exact_norms(rows, factor);
  for (int64_t i = 0; i < rows.rows(); ++i) {
    EXPECT_LE(static_cast<double>(abs(norms[i] - exact[i])), kGramNormError * static_cast<double>(exact[i]))
        << i;
  }
}

// Rows whose norms are computed directly lie elsewhere in memory then, and beside other rows.
TEST(GramNorms, OfEqualRowsAreEqualWhereverTheyAre) {
  Random random(4);
  Matrix factor = random.matrix(3, 700);
  for (int64_t j = 0; j < factor.cols(); ++j) factor(1, j) = factor(0, j) * (1 + 0x1p-30 * factor(2, j));
  Matrix rows = random.matrix(600, 3);
  const std::vector<int64_t> places{0, 1, 200, 255, 256, 599};
  for (const int64_t place : places) std::ranges::copy(Numbers{1, -1, 0}, rows.row(place).begin());
  ASSERT_TRUE(std::isnan(by_gram(rows, factor)[0])) << "the rows are refused";
  const Numbers norms = row_norms(rows, factor, Norm::l2);
  const NormFactor prepared(factor, Norm::l2);
  for (const int64_t place : places) {
    EXPECT_EQ(norms[place], norms[0]) << place;
    EXPECT_EQ(prepared.row_norms(rows.view().middle_rows(place, 1))[0], norms[0]) << "alone";
  }
}

}  // namespace
}  // namespace kvbound::reference::gram_norms_test
