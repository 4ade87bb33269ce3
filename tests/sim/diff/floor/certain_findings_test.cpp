#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/sim/diff/floor/certain_findings.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::certain_findings_test {
namespace {

TEST(AlwaysFindsElement, NeedsMoreThanBothBoundsAndBothRoundings) {
  const auto finds = [](double faulty, double bound, double faulty_error, Dtype storage = Dtype::f64) {
    return always_finds_element(1, bound, faulty, faulty_error, storage);
  };
  EXPECT_TRUE(finds(1.31, 0.1, 0.2));
  EXPECT_FALSE(finds(1.29, 0.1, 0.2));
  EXPECT_TRUE(finds(0.69, 0.1, 0.2));
  EXPECT_FALSE(finds(0.71, 0.1, 0.2));
  EXPECT_FALSE(finds(1 + 0.9 * 0x1p-7, 0, 0, Dtype::bf16)) << "rounded down, and allowed as much";
  EXPECT_TRUE(finds(1 + 1.1 * 0x1p-7, 0, 0, Dtype::bf16));
  EXPECT_FALSE(finds(2, 0.5, kInfinity));
  EXPECT_FALSE(finds(2, kInfinity, 0.5));
}

TEST(AlwaysFindFactor, ByOneOfTheNumbers) {
  const std::vector<double> expected{1, -10}, bounds{10, 2};
  const auto finds = [&](double factor) { return always_find_factor(expected, bounds, factor, Dtype::f64); };
  EXPECT_TRUE(finds(0)) << "10 > 2";
  EXPECT_TRUE(finds(0.66)) << "3.4 > 2 + 1.32";
  EXPECT_FALSE(finds(0.67)) << "not 3.3 > 2 + 1.34";
  EXPECT_TRUE(finds(-0.5)) << "15 > 2 + 1";
  EXPECT_FALSE(finds(1.49));
  EXPECT_TRUE(finds(1.51)) << "5.1 > 2 + 3.02";
}

TEST(FactorFloor, IsThatOfTheElementWithTheSmallestBoundForItsSize) {
  const std::vector<double> expected{1, -10, 0, 3}, bounds{0.1, 0.5, 0, kInfinity};
  // 10 x > 0.5 + 0.5 (1 + x)
  EXPECT_NEAR(factor_floor(expected, bounds, Dtype::f64).value(), 1 / 9.5, 1e-12);
  // With half a spacing of BF16 near 10, 2^-5, on both sides.
  EXPECT_NEAR(factor_floor(expected, bounds, Dtype::bf16).value(), (1 + 0x1p-4) / 9.5, 1e-12);
}

TEST(FactorFloor, IsNoneWhereNotEvenTwiceTheNumberIsFound) {
  // 2 - 1 > 0.3 + 0.6, but not > 0.4 + 0.8
  EXPECT_GT(factor_floor(std::vector{1.0}, std::vector{0.3}, Dtype::f64).value(), 0.8);
  EXPECT_FALSE(factor_floor(std::vector{1.0}, std::vector{0.4}, Dtype::f64));
  EXPECT_FALSE(factor_floor(std::vector{0.0}, std::vector{0.0}, Dtype::f64));
  EXPECT_FALSE(factor_floor({}, {}, Dtype::f64));
}

TEST(SmallestFound, IsWithinNinePercentAndWasFound) {
  for (const double limit : {1.0, 7.0, 99.0, 100.0}) {
    for (const double guess : {0.5, 1.0, 8.0, 64.0, 1000.0}) {
      int calls = 0;
      const double found = smallest_found(guess, 1, 100, [&](double size) {
                             ++calls;
                             return size >= limit;
                           }).value();
      EXPECT_GE(found, limit) << guess;
      EXPECT_LE(found, limit * 1.091) << guess;
      EXPECT_LE(calls, 12) << guess;
    }
  }
}

TEST(SmallestFound, IsNoneUpToTheLargest) {
  EXPECT_FALSE(smallest_found(3, 1, 100, [](double size) { return size > 100; }));
  EXPECT_EQ(smallest_found(3, 1, 100, [](double size) { return size == 100; }).has_value(), true);
}

constexpr int64_t kTokens = 50, kDim = 4;

// One query over a cache in an arithmetic in which little but the weights is rounded.
struct Case {
  Case() {
    test::Random random(2);
    query = random.matrix(1, kDim);
    keys = random.matrix(kTokens, kDim);
    values = random.matrix(kTokens, kDim);
    arithmetic = reference::double_precision();
    arithmetic.weights = 0x1p-8;
  }
  BoundedOutput output(double scale = 0.5, int64_t tokens = kTokens) const {
    return {query.row(0), keys.view().middle_rows(0, tokens), values.view().middle_rows(0, tokens), scale,
            arithmetic};
  }
  Matrix query, keys, values;
  reference::Arithmetic arithmetic;
};

TEST(CertainFindings, OfAFactorNeedItsBoundTwice) {
  const Case given;
  const BoundedOutput right = given.output();
  double square = 0, element = 1;
  for (int64_t c = 0; c < kDim; ++c) {
    square += right.output()[c] * right.output()[c];
    element = std::min(element, right.errors()[c] / std::abs(right.output()[c]));
  }
  // x > 2 b / (1 - b) of the smallest bound b, of the gain or of an element
  const double band = std::min(right.error(right.output()) / square, element),
               floor = CertainFindings(right, Dtype::f64).factor_floor().value();
  EXPECT_NEAR(floor, 2 * band / (1 - band), 1e-6 * floor);
  const CertainFindings findings(right, Dtype::f64);
  EXPECT_TRUE(findings.always_find_factor(1 + 1.001 * floor));
  EXPECT_TRUE(findings.always_find_factor(1 - 1.001 * floor));
  EXPECT_FALSE(findings.always_find_factor(1 + 0.999 * floor));
  EXPECT_TRUE(findings.always_find_factor(0));
  EXPECT_FALSE(findings.always_find_factor(1));
  EXPECT_GT(CertainFindings(right, Dtype::bf16).factor_floor().value(), 1.1 * floor);
}

// Of equal values all directions are the same, and so are all components.
TEST(CertainFindings, CountTheStorageOfOutputs) {
  Case given;
  given.arithmetic = reference::double_precision();
  for (int64_t j = 0; j < kTokens; ++j) std::ranges::fill(given.values.row(j), 1.0);
  const BoundedOutput right = given.output();
  const CertainFindings findings(right, Dtype::bf16);
  EXPECT_TRUE(findings.always_find_factor(1 + 1.01 * 0x1p-7));
  EXPECT_FALSE(findings.always_find_factor(1 + 0.99 * 0x1p-7));
}

TEST(CertainFindings, CountTheRoundingOfTheFaultyOutput) {
  Case given;
  const BoundedOutput right = given.output(), faulty = given.output(0.53);
  given.arithmetic.weights = 0x1p-4;
  const BoundedOutput rough = given.output(0.53);
  EXPECT_TRUE(CertainFindings(right, Dtype::f64).always_find(faulty));
  EXPECT_FALSE(CertainFindings(right, Dtype::f64).always_find(rough));
  EXPECT_FALSE(CertainFindings(rough, Dtype::f64).always_find(right));
  EXPECT_FALSE(CertainFindings(right, Dtype::f64).always_find(right));
}

TEST(CertainFindings, AreNoneWithoutABound) {
  Case given;
  given.arithmetic.input = kInfinity;
  const BoundedOutput unbounded = given.output();
  EXPECT_FALSE(CertainFindings(unbounded, Dtype::f64).always_find(given.output(5)));
  EXPECT_FALSE(CertainFindings(unbounded, Dtype::f64).factor_floor());
  given.values = Matrix(kTokens, kDim);
  given.arithmetic = reference::double_precision();
  const BoundedOutput zeros = given.output();
  EXPECT_FALSE(CertainFindings(zeros, Dtype::f64).factor_floor());
}

TEST(BoundedOutput, WeighsTheLastTokens) {
  Case given;
  given.keys = Matrix(kTokens, kDim);
  EXPECT_NEAR(given.output().weight_from(kTokens - 5), 0.1, 1e-12);
  EXPECT_NEAR(given.output().weight_from(0), 1, 1e-12);
}

}  // namespace
}  // namespace kvbound::sim::certain_findings_test
