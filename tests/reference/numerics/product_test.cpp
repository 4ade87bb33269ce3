#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <omp.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/token_blocks.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"
#include "support/threads.hpp"

namespace kvbound::reference::product_test {
namespace {

using test::matrix;
using test::message_of;
using test::Random;

std::vector<double> numbers_of(const Matrix& m) { return {m.numbers().begin(), m.numbers().end()}; }

TEST(Multiply, IsTheMatrixProduct) {
  // (1 2) (5 6)   (1*5+2*7  1*6+2*8)   (19 22)
  // (3 4) (7 8) = (3*5+4*7  3*6+4*8) = (43 50)
  Matrix out(2, 2);
  multiply(matrix({{1, 2}, {3, 4}}), matrix({{5, 6}, {7, 8}}), out.view());
  EXPECT_EQ(numbers_of(out), (std::vector<double>{19, 22, 43, 50}));
}

TEST(MultiplyTransposed, MultipliesRowsByRows) {
  // (1 2).(5 6) = 17, (1 2).(7 8) = 23, (3 4).(5 6) = 39, (3 4).(7 8) = 53.
  Matrix out(2, 2);
  multiply_transposed(matrix({{1, 2}, {3, 4}}), matrix({{5, 6}, {7, 8}}), out.view());
  EXPECT_EQ(numbers_of(out), (std::vector<double>{17, 23, 39, 53}));
}

TEST(MultiplyTransposed, ScalesTheProduct) {
  // 3 (1 2).(5 6) = 51, 3 (1 2).(7 8) = 69.
  Matrix out(1, 2);
  multiply_transposed(matrix({{1, 2}}), matrix({{5, 6}, {7, 8}}), out.view(), 3);
  EXPECT_EQ(numbers_of(out), (std::vector<double>{51, 69}));
}

TEST(MultiplyWithBlasThreads, IsTheProductAndLeavesOneThread) {
  Random random(3);
  const Matrix a = random.matrix(200, 150), b = random.matrix(150, 300);
  Matrix before(200, 300), threaded(200, 300), after(200, 300);
  multiply(a, b, before.view());
  const int threads = multiply_with_blas_threads(a, b, threaded.view(), 2);
  EXPECT_EQ(threads, blas_info().flavour == "serial" ? 1 : 2);
  EXPECT_EQ(blas_threads(), 1);
  multiply(a, b, after.view());
  EXPECT_EQ(numbers_of(after), numbers_of(before)) << "the bits of one thread";
  for (int64_t i = 0; i < 200; ++i) {
    for (int64_t j = 0; j < 300; ++j) {
      // Both are within gamma_150 sum |a b| of the exact product, 150 u / (1 - 150 u) < 151 u.
      double size = 0;
      for (int64_t k = 0; k < 150; ++k) size += std::abs(a(i, k) * b(k, j));
      const double bound = 2 * 151 * (std::numeric_limits<double>::epsilon() / 2) * size;
      ASSERT_LE(std::abs(threaded(i, j) - before(i, j)), bound);
    }
  }
}

TEST(MultiplyWithBlasThreads, LeavesOneThreadWhenItRefuses) {
  Matrix out(2, 2);
  EXPECT_THROW(multiply_with_blas_threads(Matrix(2, 3), Matrix(5, 2), out.view(), 2), ShapeMismatch);
  EXPECT_EQ(blas_threads(), 1);
}

// An OpenBLAS built for OpenMP sets OpenMP's number of threads along with its own.
TEST(MultiplyWithBlasThreads, LeavesOpenMpThreadsAsTheyWere) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  Matrix out(1, 1);
  multiply(matrix({{2}}), matrix({{3}}), out.view());
  EXPECT_EQ(omp_get_max_threads(), 3);
  multiply_with_blas_threads(matrix({{2}}), matrix({{3}}), out.view(), 2);
  EXPECT_EQ(omp_get_max_threads(), 3);
  EXPECT_THROW(multiply_with_blas_threads(Matrix(2, 3), Matrix(5, 2), out.view(), 2), ShapeMismatch);
  EXPECT_EQ(omp_get_max_threads(), 3);
  omp_set_num_threads(before);
}

// The product's bits must not depend on the number of threads.
TEST(Multiply, TakesOneThreadHoweverManyOpenMpHas) {
  Random random(4);
  const Matrix a = random.matrix(200, 700), b = random.matrix(700, 300);
  Matrix one(200, 300), many(200, 300);
  test::with_threads(1, [&] { multiply(a, b, one.view()); });
  test::with_threads(4, [&] { multiply(a, b, many.view()); });
  EXPECT_EQ(numbers_of(many), numbers_of(one));
}

Matrix repeated(VectorView row, int64_t rows) {
  Matrix matrix(rows, std::ssize(row));
  for (int64_t i = 0; i < rows; ++i) std::ranges::copy(row, matrix.row(i).begin());
  return matrix;
}

// The property that token_blocks.hpp relies on: all rows of a block take the same code path.
TEST(MultiplyTransposed, GivesEqualTokensOfABlockEqualBits) {
  Random random(5);
  for (const int64_t size : {kTokenBlock, 2 * kTokenBlock, 4 * kTokenBlock}) {
    for (const int64_t queries : {1, 2, 7, 32, 128}) {
      for (const int64_t head_dim : {1, 8, 33, 64, 128, 256}) {
        const Matrix a = random.matrix(queries, head_dim);
        Matrix out(queries, size);
        multiply_transposed(a, repeated(random.matrix(1, head_dim).row(0), size), out.view());
        for (int64_t i = 0; i < queries; ++i) {
          const VectorView row = std::as_const(out).row(i);
          ASSERT_EQ(std::ranges::count(row, row[0]), size) << queries << " queries, head_dim " << head_dim;
        }
      }
    }
  }
}

TEST(Multiply, GivesEqualTokensOfABlockEqualBits) {
  Random random(6);
  for (const int64_t head_dim : {1, 8, 33, 64, 128, 256}) {
    for (const int64_t columns : {1, 7, 70, 256, 512}) {
      const Matrix b = random.matrix(head_dim, columns);
      Matrix out(kTokenBlock, columns);
      multiply(repeated(random.matrix(1, head_dim).row(0), kTokenBlock), b, out.view());
      const VectorView first = std::as_const(out).row(0);
      for (int64_t i = 1; i < kTokenBlock; ++i) {
        ASSERT_TRUE(std::ranges::equal(std::as_const(out).row(i), first))
            << columns << " columns, head_dim " << head_dim;
      }
    }
  }
}

TEST(Multiply, ForgetsWhatWasThereBefore) {
  const double before = std::numeric_limits<double>::quiet_NaN();
  Matrix out = matrix({{before, before}});
  multiply(matrix({{2}}), matrix({{3, 4}}), out.view());
  EXPECT_EQ(numbers_of(out), (std::vector<double>{6, 8}));
}

TEST(Multiply, OfNothingIsZero) {
  Matrix out = matrix({{7, std::numeric_limits<double>::quiet_NaN()}});
  multiply(Matrix(1, 0), Matrix(0, 2), out.view());
  EXPECT_EQ(numbers_of(out), (std::vector<double>{0, 0}));
  out = matrix({{7, 7}});
  multiply_transposed(Matrix(1, 0), Matrix(2, 0), out.view());
  EXPECT_EQ(numbers_of(out), (std::vector<double>{0, 0}));
}

TEST(Multiply, DoesNothingWithoutRowsOrColumns) {
  Matrix no_rows(0, 2), no_columns(2, 0);
  EXPECT_NO_THROW(multiply(Matrix(0, 3), Matrix(3, 2), no_rows.view()));
  EXPECT_NO_THROW(multiply(Matrix(2, 3), Matrix(3, 0), no_columns.view()));
  EXPECT_NO_THROW(multiply_transposed(Matrix(2, 3), Matrix(0, 3), no_columns.view()));
}

TEST(Multiply, ReadsAndWritesOnlyWhatItsViewsShow) {
  // The middle columns of both factors, multiplied into the middle columns of the result.
  Matrix a = matrix({{9, 1, 2, 9}, {9, 3, 4, 9}}), b = matrix({{9, 5, 6}, {9, 7, 8}});
  Matrix out = matrix({{-1, 0, 0, -1}, {-1, 0, 0, -1}});
  multiply(a.view().middle_cols(1, 2), b.view().middle_cols(1, 2), out.view().middle_cols(1, 2));
  EXPECT_EQ(numbers_of(out), (std::vector<double>{-1, 19, 22, -1, -1, 43, 50, -1}));
}

TEST(Multiply, NamesBothDimensionsThatDiffer) {
  Matrix out(2, 4);
  const auto multiplied = [&](Matrix a, Matrix b) {
    return message_of<ShapeMismatch>([&] { multiply(a, b, out.view()); });
  };
  EXPECT_EQ(multiplied(Matrix(2, 3), Matrix(5, 4)), "columns of a is 3 but rows of b is 5");
  EXPECT_EQ(multiplied(Matrix(1, 3), Matrix(3, 4)), "rows of a is 1 but rows of the product is 2");
  EXPECT_EQ(multiplied(Matrix(2, 3), Matrix(3, 6)), "columns of b is 6 but columns of the product is 4");
  const auto transposed = [&](Matrix a, Matrix b) {
    return message_of<ShapeMismatch>([&] { multiply_transposed(a, b, out.view()); });
  };
  EXPECT_EQ(transposed(Matrix(2, 3), Matrix(4, 5)), "columns of a is 3 but columns of b is 5");
  EXPECT_EQ(transposed(Matrix(1, 3), Matrix(4, 3)), "rows of a is 1 but rows of the product is 2");
  EXPECT_EQ(transposed(Matrix(2, 3), Matrix(6, 3)), "rows of b is 6 but columns of the product is 4");
}

// k products and k - 1 additions in any order, fused or not: gamma_k sum |a b| for each element.
TEST(ProductOracle, IsMetWithinTheDerivedBounds) {
  Random random(1);
  for (const int64_t k : {1, 2, 31, 33, 130}) {
    const int64_t rows = 1 + random.index(9), cols = 1 + random.index(9);
    const Matrix a = random.matrix(rows, k), b = random.matrix(k, cols);
    Matrix b_transposed(cols, k), out(rows, cols), out_transposed(rows, cols);
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < cols; ++j) b_transposed(j, i) = b(i, j);
    }
    oracle::Rows expected;
    for (int64_t i = 0; i < rows; ++i) {
      oracle::Row row;
      for (int64_t j = 0; j < cols; ++j) {
        row.push_back(dot(oracle::exactly(a.row(i)), oracle::exactly(std::as_const(b_transposed).row(j))));
      }
      expected.push_back(row);
    }
    multiply(a, b, out.view());
    multiply_transposed(a, b_transposed, out_transposed.view());
    EXPECT_TRUE(oracle::all_within(out, expected));
    EXPECT_TRUE(oracle::all_within(out_transposed, expected));
  }
}

TEST(BlasInfo, SaysWhatWasLoaded) {
  const BlasInfo info = blas_info();
  EXPECT_TRUE(info.library() == "OpenBLAS" || info.library() == "Eigen") << info.name;
  EXPECT_NE(info.name, info.library()) << "a version, at least";
  EXPECT_FALSE(info.core.empty());
  EXPECT_TRUE(info.flavour == "serial" || info.flavour == "pthread" || info.flavour == "openmp")
      << info.flavour;
}

}  // namespace
}  // namespace kvbound::reference::product_test
