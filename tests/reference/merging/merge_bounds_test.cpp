#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/merging/merge_bounds.hpp>

#include "support/random_layer.hpp"

namespace kvbound::test::merge_bounds_test {
namespace {

using namespace reference;

TEST(PredictionError, IsTheLargestRelativeErrorOfScores) {
  // Scores of 1/2, 3/4 and 1 were predicted as 1: relative errors 1, 1/3 and 0.
  const std::vector<double> predicted{0, 0, 0}, actual{std::log(0.5), std::log(0.75), 0};
  EXPECT_NEAR(prediction_error(predicted, actual), 1, 0x1p-51);
  EXPECT_NEAR(prediction_error(actual, predicted), 0.5, 0x1p-52);
  EXPECT_EQ(prediction_error(predicted, predicted), 0);
  EXPECT_EQ(prediction_error({}, {}), 0);
}

TEST(PredictionError, KeepsTheDigitsOfSmallErrorsAndSurvivesLargeOnes) {
  const std::vector<double> actual{-500};
  for (const double error : {1e-9, -1e-9}) {
    const std::vector<double> predicted{-500 + error};
    EXPECT_EQ(prediction_error(predicted, actual), std::abs(std::expm1((-500 + error) + 500)));
  }
  const std::vector<double> predicted{1e4}, nothing{-kInfinity};
  EXPECT_EQ(prediction_error(predicted, actual), kInfinity);
  EXPECT_EQ(prediction_error(nothing, actual), 1);
}

TEST(PredictionError, OfNoNumberIsNone) {
  const std::vector<double> predicted{std::nan(""), 0}, actual{0, 1};
  EXPECT_FALSE(prediction_error(predicted, actual) < 1e300);
  EXPECT_EQ(message_of<ShapeMismatch>([&] { prediction_error(predicted, {}); }).find("no error"),
            std::string::npos);
}

TEST(LaterBound, IsThePrintedOneTimesTheShare) {
  EXPECT_EQ(later_bound(0.5, 3), 2 * 0.5 * 1.5 * 3 / 0.25);
  EXPECT_EQ(later_bound(0.5, 3, 0.25), 2 * 0.5 * 1.5 * 3);
  EXPECT_EQ(later_bound(0, 3), 0) << "KKV-6: what is predicted exactly changes nothing";
}

TEST(LaterBound, ClaimsNothingUnlessErrorsAreBelowOne) {
  for (const double error : {1.0, 1.5, kInfinity, std::nan("")})
    EXPECT_EQ(later_bound(error, 3, 0.25), kInfinity);
  EXPECT_LT(later_bound(std::nextafter(1, 0), 3), kInfinity);
}

double farthest(const Matrix& values, const Matrix& others) {
  double most = 0;
  for (int64_t i = 0; i < values.rows(); ++i) {
    for (int64_t j = 0; j < others.rows(); ++j) {
      double sum = 0;
      for (int64_t c = 0; c < values.cols(); ++c) sum += std::pow(values(i, c) - others(j, c), 2);
      most = std::max(most, std::sqrt(sum));
    }
  }
  return most;
}

TEST(LargestDistance, IsThatOfAllPairsAcrossBlocks) {
  for (const auto& [entries, members] : {std::pair{1, 1}, {31, 5}, {256, 256}, {257, 300}, {700, 3}}) {
    Random random(static_cast<uint64_t>(entries + members));
    const Matrix values = random.matrix(entries, 17), others = random.matrix(members, 17);
    const double expected = farthest(values, others);
    EXPECT_NEAR(largest_distance(values, others), expected, 20 * 0x1p-53 * expected)
        << entries << ", " << members;
  }
}

TEST(LargestDistance, DoesNotCancel) {
  // Rows far from 0 and close to each other: the squares of their norms agree in all digits.
  Random random(3);
  Matrix values = random.matrix(300, 8, 1e-9), others = random.matrix(20, 8, 1e-9);
  for (Matrix* rows : {&values, &others}) {
    for (int64_t i = 0; i < rows->rows(); ++i) {
      for (double& number : rows->row(i)) number += 1e6;
    }
  }
  const double expected = farthest(values, others);
  ASSERT_GT(expected, 0);
  ASSERT_LT(expected, 1e-6);
  EXPECT_NEAR(largest_distance(values, others), expected, 20 * 0x1p-53 * expected);
}

TEST(LargestDistance, OfEqualOrNoValuesIsZero) {
  Random random(4);
  const Matrix value = random.matrix(1, 5);
  EXPECT_EQ(largest_distance(value, value), 0);
  EXPECT_EQ(largest_distance(Matrix(0, 5), value), 0);
  EXPECT_EQ(largest_distance(value, Matrix(0, 5)), 0);
}

TEST(LargestDistance, RefusesWhatIsNoNumberAndOtherShapes) {
  Matrix value = matrix({{1, std::nan("")}});
  EXPECT_NE(message_of<NonFinite>([&] { largest_distance(value, Matrix(1, 2)); }), "no error");
  EXPECT_NE(message_of<ShapeMismatch>([&] { largest_distance(Matrix(1, 3), Matrix(1, 2)); }), "no error");
}

}  // namespace
}  // namespace kvbound::test::merge_bounds_test
