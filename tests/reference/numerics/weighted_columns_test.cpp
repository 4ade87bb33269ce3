#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/numerics/weighted_columns.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::weighted_columns_test {
namespace {

constexpr std::array<int64_t, 5> kColumns{1, 15, 16, 17, 64};

struct Case {
  Matrix rows;
  std::vector<double> weights, others;

  explicit Case(int64_t columns) : rows(50, columns) {
    test::Random random(static_cast<uint64_t>(columns));
    for (int64_t j = 0; j < rows.rows(); ++j) {
      for (double& number : rows.row(j)) number = j % 7 == 3 ? 0 : random.normal();
      weights.push_back(random.normal());
      others.push_back(std::abs(random.normal()));
    }
  }
};

TEST(WeightedColumns, AreThoseOfOneNumberAfterTheOther) {
  for (const int64_t columns : kColumns) {
    const Case given(columns);
    const WeightedColumns found = weighted_columns(given.rows, given.weights);
    for (int64_t c = 0; c < columns; ++c) {
      double sum = 0, squares = 0, low = 0, high = 0, signs = 0, aligned = 0;
      for (int64_t j = 0; j < given.rows.rows(); ++j) {
        const double term = given.weights[j] * given.rows(j, c), sign = term > 0 ? 1 : term < 0 ? -1 : 0;
        sum += term;
        squares += term * term;
        low = std::min(low, sum);
        high = std::max(high, sum);
        signs += sign;
        aligned += sign * sum;
      }
      EXPECT_EQ(found.sums[c], sum);
      EXPECT_EQ(found.squares[c], squares);
      EXPECT_EQ(found.low[c], low);
      EXPECT_EQ(found.high[c], high);
      EXPECT_EQ(found.signs[c], signs);
      EXPECT_EQ(found.aligned[c], aligned);
    }
  }
}

TEST(WeightedColumns, OfNoRowsAreZeros) {
  const WeightedColumns found = weighted_columns(Matrix(0, 3), {});
  EXPECT_EQ(found.sums, std::vector<double>(3));
  EXPECT_EQ(found.aligned, std::vector<double>(3));
  EXPECT_EQ(column_ranges(Matrix(0, 3)).least, std::vector<double>(3, kInfinity));
}

TEST(ColumnRanges, AreTheLeastAndTheLargestNumbers) {
  for (const int64_t columns : kColumns) {
    Case given(columns);
    for (double& number : given.rows.row(0)) number = 3;  // 0 is neither
    for (int64_t j = 0; j < given.rows.rows(); ++j) given.rows(j, 0) = std::abs(given.rows(j, 0)) + 1;
    const ColumnRanges found = column_ranges(given.rows);
    for (int64_t c = 0; c < columns; ++c) {
      double least = kInfinity, most = -kInfinity;
      for (int64_t j = 0; j < given.rows.rows(); ++j) {
        least = std::min(least, given.rows(j, c));
        most = std::max(most, given.rows(j, c));
      }
      EXPECT_EQ(found.least[c], least);
      EXPECT_EQ(found.most[c], most);
    }
  }
}

TEST(WeightedDistances, AreOfEachFactorFromTheCentre) {
  for (const int64_t columns : kColumns) {
    const Case given(columns);
    const VectorView centre = given.rows.row(5);
    const std::array<VectorView, 4> all{given.others, given.weights, given.others, given.weights};
    for (size_t count = 1; count <= all.size(); ++count) {
      const Matrix found = weighted_distances(given.rows, centre, std::span(all).first(count));
      for (size_t k = 0; k < count; ++k) {
        for (int64_t c = 0; c < columns; ++c) {
          double sum = 0;
          for (int64_t j = 0; j < given.rows.rows(); ++j)
            sum += all[k][j] * std::abs(given.rows(j, c) - centre[c]);
          EXPECT_EQ(found(static_cast<int64_t>(k), c), sum);
        }
      }
    }
  }
}

TEST(RowProducts, AreThoseOfEachRow) {
  for (const int64_t columns : kColumns) {
    const Case given(columns);
    const VectorView direction = given.rows.row(1);
    const std::vector<double> found = row_products(given.rows, direction);
    for (int64_t j = 0; j < given.rows.rows(); ++j) {
      double sum = 0, size = 0;
      for (int64_t c = 0; c < columns; ++c) {
        sum += given.rows(j, c) * direction[c];
        size += std::abs(given.rows(j, c) * direction[c]);
      }
      EXPECT_LE(std::abs(found[j] - sum), 0x1p-52 * static_cast<double>(columns) * size) << j;
    }
  }
}

}  // namespace
}  // namespace kvbound::reference::weighted_columns_test
