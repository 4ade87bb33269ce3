#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/proofs/oracle/merging.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/merge_baselines.hpp>
#include <kvbound/reference/merging/weighted_mean.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference::merge_baselines_test {
namespace {

using oracle::all_within;
using oracle::Bounded;
using oracle::Real;
using oracle::Row;
using oracle::Rows;
using test::integer;
using test::matrix;
using test::message_of;
using test::Random;

constexpr double kMost = std::numeric_limits<double>::max();
constexpr double kLeast = std::numeric_limits<double>::denorm_min();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<double> equal_weights(size_t members) {
  return std::vector<double>(members, 1 / static_cast<double>(members));
}

double sum(const std::vector<double>& numbers) {
  double result = 0;
  for (const double number : numbers) result += number;
  return result;
}

// Keys of any size: some near each other, some far apart, some zero.
Matrix any_keys() {
  const int64_t members = *integer(1, 9), head_dim = *integer(1, 17);
  Random random(static_cast<uint64_t>(*integer(0, 1 << 30)));
  const double size = std::ldexp(1.0, static_cast<int>(*integer(-1000, 1000)));
  const double spread = std::ldexp(1.0, -static_cast<int>(*integer(0, 40)));
  const Matrix center = random.matrix(1, head_dim, size);
  Matrix keys = random.matrix(members, head_dim, size * spread);
  for (int64_t j = 0; j < members; ++j) {
    const bool zero = random.index(12) == 0;
    for (int64_t c = 0; c < head_dim; ++c) keys(j, c) = zero ? 0 : keys(j, c) + center(0, c);
  }
  return keys;
}

TEST(SimilarityWeights, AreTheSoftmaxOfCosines) {
  const Matrix keys = matrix({{2, 0}, {0, 5}, {-1, 0}, {3, 0}});
  const double e = std::exp(1.0), total = 2 * e + 1 + 1 / e;
  const std::vector<double> expected{e / total, 1 / total, 1 / (e * total), e / total};
  const std::vector<double> weights = similarity_weights(keys);
  for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(weights[j], expected[j], 1e-15);
}

TEST(SimilarityWeights, OfZeroKeysTakeACosineOfZeroButTheTargetsWithItself) {
  const double e = std::exp(1.0);
  const std::vector<double> zero_other = similarity_weights(matrix({{1, 1}, {0, 0}}));
  EXPECT_NEAR(zero_other[0], e / (e + 1), 1e-15);
  const std::vector<double> zero_target = similarity_weights(matrix({{0, 0}, {3, 4}, {0, 0}}));
  EXPECT_NEAR(zero_target[0], e / (e + 2), 1e-15);
  EXPECT_EQ(zero_target[1], zero_target[2]);
}

TEST(SimilarityWeights, OfEqualKeysAreEqual) {
  const std::vector<double> weights =
      similarity_weights(matrix({{0.1, 0.7}, {0.1, 0.7}, {0.2, 1.4}, {0.4, 2.8}}));
  for (const double weight : weights) EXPECT_NEAR(weight, 0.25, 1e-15);
}

TEST(SimilarityWeights, DependOnNoKeysSize) {
  const std::vector<double> weights = similarity_weights(matrix({{3, 4}, {4, 3}, {-3, 4}}));
  for (const double size : {0x1p1020, 0x1p-1070}) {
    Matrix keys = matrix({{3, 4}, {4 * size, 3 * size}, {-3, 4}});
    EXPECT_EQ(similarity_weights(keys), weights) << size;
  }
  EXPECT_EQ(similarity_weights(matrix({{0x1p1023, 0x1p1023}, {-0x1p1023, 0x1p1023}, {kLeast, kLeast}})),
            similarity_weights(matrix({{1, 1}, {-1, 1}, {1, 1}})));
}

TEST(GaussianWeights, AreThoseOfTheDistances) {
  // Squared distances 1, 4, 4: sigma^2 = 3.
  const std::vector<double> weights = gaussian_weights(matrix({{1, 0}, {2, 0}, {1, 2}, {-1, 0}}));
  const double near = std::exp(-1.0 / 6), far = std::exp(-4.0 / 6), total = 1 + near + 2 * far;
  const std::vector<double> expected{1 / total, near / total, far / total, far / total};
  for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(weights[j], expected[j], 1e-15);
}

TEST(GaussianWeights, OfTwoDependOnNothing) {
  // The only distance equals sigma.
  const double other = std::exp(-0.5) / (1 + std::exp(-0.5));
  for (const double distance : {1.0, 1e-300, 1e300, kMost, kLeast}) {
    const std::vector<double> weights = gaussian_weights(matrix({{0, 0}, {distance, 0}}));
    EXPECT_NEAR(weights[1], other, 1e-15) << distance;
    EXPECT_NEAR(weights[0], 1 - other, 1e-15) << distance;
  }
}

TEST(GaussianWeights, OfKeysWithoutDistanceAreEqual) {
  EXPECT_EQ(gaussian_weights(matrix({{kMost, 1}, {kMost, 1}, {kMost, 1}})), equal_weights(3));
  EXPECT_EQ(gaussian_weights(matrix({{0, 0}, {0, 0}})), equal_weights(2));
}

TEST(GaussianWeights, AreNumbersWhereSquaresAreNot) {
  const std::vector<double> opposite = gaussian_weights(matrix({{kMost, 0}, {-kMost, 0}, {kMost, 0}}));
  // Squared distances 4 and 0 in units of the keys' size: sigma^2 = 2.
  const double far = std::exp(-1.0), total = 2 + far;
  EXPECT_NEAR(opposite[0], 1 / total, 1e-15);
  EXPECT_NEAR(opposite[1], far / total, 1e-15);
  EXPECT_NEAR(opposite[2], 1 / total, 1e-15);
  const std::vector<double> one_bit = gaussian_weights(matrix({{1, kLeast}, {1, 2 * kLeast}, {1, kLeast}}));
  for (size_t j = 0; j < 3; ++j) EXPECT_NEAR(one_bit[j], opposite[j], 1e-15);
  const std::vector<double> beside_large =
      gaussian_weights(matrix({{kMost, kLeast}, {kMost, 0}, {kMost, kLeast}}));
  for (size_t j = 0; j < 3; ++j) EXPECT_NEAR(beside_large[j], opposite[j], 1e-15);
}

TEST(ClusterWeights, OfOneMemberAreOne) {
  for (const double number : {0.0, 2.0, kMost}) {
    EXPECT_EQ(similarity_weights(matrix({{number}})), std::vector{1.0});
    EXPECT_EQ(gaussian_weights(matrix({{number}})), std::vector{1.0});
  }
}

TEST(ClusterWeights, RefuseWhatIsNoCluster) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { similarity_weights(Matrix(0, 3)); }), "a cluster of no keys");
  EXPECT_EQ(message_of<ShapeMismatch>([] { gaussian_weights(Matrix(0, 3)); }), "a cluster of no keys");
  EXPECT_EQ(message_of<NonFinite>([] {
              similarity_weights(matrix({{1, 2}, {3, kNaN}}));
            }),
            "keys[1][1] is nan");
  EXPECT_EQ(message_of<NonFinite>([] {
              gaussian_weights(matrix({{1, 1 / kLeast}, {3, 4}}));
            }),
            "keys[0][1] is inf");
}

RC_GTEST_PROP(SimilarityWeights, AreWithinTheirRoundingBoundOfFiftyDigits, ()) {
  const Matrix keys = any_keys();
  RC_LOG() << keys.rows() << " x " << keys.cols();
  RC_ASSERT(all_within(similarity_weights(keys), oracle::similarity_weights(oracle::exactly(keys.view()))));
}

RC_GTEST_PROP(GaussianWeights, AreWithinTheirRoundingBoundOfFiftyDigits, ()) {
  const Matrix keys = any_keys();
  RC_LOG() << keys.rows() << " x " << keys.cols();
  RC_ASSERT(all_within(gaussian_weights(keys), oracle::gaussian_weights(oracle::exactly(keys.view()))));
}

RC_GTEST_PROP(ClusterWeights, AreAtLeastZeroAndAddUpToOne, ()) {
  const Matrix keys = any_keys();
  for (const auto& weights : {similarity_weights(keys), gaussian_weights(keys)}) {
    for (const double weight : weights) RC_ASSERT(weight >= 0 && weight <= 1);
    // One rounding for each quotient and at most one for each addition, here and in the denominator.
    RC_ASSERT(std::abs(sum(weights) - 1) <= 2 * static_cast<double>(keys.rows() + 1) * 0x1p-53);
  }
}

TEST(WeightedMean, IsTheSumOfWeightedRows) {
  EXPECT_EQ(weighted_mean(std::vector{0.25, 0.75}, matrix({{4, 8}, {0, 4}})), (std::vector{1.0, 5.0}));
  EXPECT_EQ(weighted_mean({}, Matrix(0, 2)), (std::vector{0.0, 0.0}));
}

TEST(WeightedMean, RefusesWeightsOfOtherRows) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { weighted_mean(std::vector{1.0}, Matrix(2, 2)); }),
            "weights is 1 but rows is 2");
}

}  // namespace
}  // namespace kvbound::reference::merge_baselines_test
