#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/functionals.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::functionals_test {
namespace {

// One query's attention over random keys and values.
struct Case {
  Case(int64_t tokens, int64_t head_dim, uint64_t seed, const Arithmetic& arithmetic_)
      : query(1, head_dim), keys(tokens, head_dim), values(tokens, head_dim), arithmetic(arithmetic_) {
    test::Random random(seed);
    for (Matrix* matrix : {&query, &keys, &values}) {
      for (int64_t j = 0; j < matrix->rows(); ++j) {
        for (double& number : matrix->row(j)) number = random.normal();
      }
    }
    scale = 1 / std::sqrt(static_cast<double>(head_dim));
    errors = attention_errors(query, keys, values, scale, {}, arithmetic);
  }

  OutputFunctionals functionals() const { return {errors, 0, values, {}, arithmetic}; }
  Matrix output(double factor = 1) const { return attention(query, keys, values, factor * scale).output; }
  std::vector<double> weights() const {
    std::vector<double> all;
    for (int64_t j = 0; j < keys.rows(); ++j) all.push_back(std::exp(errors.log_weights(0, j)));
    return all;
  }

  Matrix query, keys, values;
  Arithmetic arithmetic;
  double scale = 1;
  AttentionErrors errors;
};

Arithmetic with_16_bit_weights() {
  Arithmetic arithmetic = double_precision();
  arithmetic.weights = 0x1p-8;
  return arithmetic;
}

// <w, o^ - o> where every weight is rounded in the direction that moves it most.
//
// divided_by_rounded  whether the sum of the weights is that of the rounded ones
double worst_move(const Case& given, VectorView direction, const std::vector<double>& output,
                  bool divided_by_rounded) {
  const std::vector<double> weights = given.weights();
  double value = 0, largest = 0;
  for (size_t c = 0; c < direction.size(); ++c) value += direction[c] * output[c];
  for (const double sign : {1.0, -1.0}) {
    double sum = 0, along = 0;
    for (size_t j = 0; j < weights.size(); ++j) {
      const VectorView row = given.values.row(static_cast<int64_t>(j));
      const double x = std::inner_product(direction.begin(), direction.end(), row.begin(), 0.0);
      const double apart = divided_by_rounded ? x - value : x;
      const double rounded = weights[j] * (1 + sign * std::copysign(0x1p-8, apart));
      sum += divided_by_rounded ? rounded : weights[j];
      along += rounded * x;
    }
    largest = std::max(largest, std::abs(along / sum - value));
  }
  return largest;
}

TEST(Functionals, AreAttainedByWeightsThatAreRoundedTheirWay) {
  test::Random random(9);
  for (const int64_t tokens : {5, 60, 900}) {
    const Case given(tokens, 16, static_cast<uint64_t>(tokens), with_16_bit_weights());
    const OutputFunctionals functionals = given.functionals();
    std::vector<double> signs(16);
    for (double& sign : signs) sign = random.normal() < 0 ? -1 : 1;
    for (const std::vector<double>& direction :
         {functionals.output(), functionals.scale_direction(), signs}) {
      for (const bool divided_by_rounded : {true, false}) {
        const double worst = worst_move(given, direction, functionals.output(), divided_by_rounded);
        EXPECT_LE(worst, functionals.error(direction));
        EXPECT_GT(worst, 0.4 * functionals.error(direction)) << tokens;
      }
    }
  }
}

TEST(Functionals, AreNoMoreThanTheSumOfTheElementsBounds) {
  for (const int64_t tokens : {3, 200}) {
    const Case given(tokens, 12, 4, with_16_bit_weights());
    const OutputFunctionals functionals = given.functionals();
    double sum = 0;
    for (int64_t c = 0; c < 12; ++c) {
      std::vector<double> element(12);
      element[c] = 1;
      EXPECT_LE(functionals.error(element), given.errors.output(0, c) * (1 + 1e-12));
      sum += std::abs(functionals.output()[c]) * given.errors.output(0, c);
    }
    EXPECT_LE(functionals.error(functionals.output()), sum * (1 + 1e-12));
  }
}

TEST(Functionals, BoundTheGainFarBelowWhatElementsBound) {
  const Case given(4000, 64, 6, with_16_bit_weights());
  const OutputFunctionals functionals = given.functionals();
  const std::vector<double>& output = functionals.output();
  double square = 0, by_elements = 0;
  for (size_t c = 0; c < output.size(); ++c) {
    square += output[c] * output[c];
    by_elements += std::abs(output[c]) * given.errors.output(0, static_cast<int64_t>(c));
  }
  EXPECT_LT(functionals.error(output), 0.04 * square) << "the gain is within 4 %";
  EXPECT_LT(3 * functionals.error(output), by_elements);
}

TEST(Functionals, PointToAFactorOfTheLogits) {
  const Case given(3000, 64, 7, with_16_bit_weights());
  const OutputFunctionals functionals = given.functionals();
  const std::vector<double> direction = functionals.scale_direction();
  const Matrix larger = given.output(1.001), smaller = given.output(0.999);
  for (int64_t c = 0; c < 64; ++c) {
    EXPECT_NEAR((larger(0, c) - smaller(0, c)) / 0.002, direction[c], 1e-5 + 1e-3 * std::abs(direction[c]));
  }
  // 1.03 is beyond what rounding can do; 1.003 is not.
  const auto moved = [&](double factor) {
    const Matrix other = given.output(factor);
    double along = 0;
    for (int64_t c = 0; c < 64; ++c) along += direction[c] * (other(0, c) - functionals.output()[c]);
    return std::abs(along);
  };
  EXPECT_GT(moved(1.03), functionals.error(direction));
  EXPECT_LT(moved(1.003), functionals.error(direction));
}

// Of values that all have a large number in common only the rounding of the weights' sum is left.
TEST(Functionals, AreOfTheDistancesFromTheOutput) {
  Case given(500, 16, 10, with_16_bit_weights());
  for (int64_t j = 0; j < 500; ++j) {
    for (double& number : given.values.row(j)) number += 100;
  }
  given.errors = attention_errors(given.query, given.keys, given.values, given.scale, {}, given.arithmetic);
  const OutputFunctionals functionals = given.functionals();
  const std::vector<double> ones(16, 1.0);
  const double value = std::accumulate(functionals.output().begin(), functionals.output().end(), 0.0);
  EXPECT_GT(functionals.error(ones), 0x1p-8 * value);
  EXPECT_LT(functionals.error(ones), 1.1 * 0x1p-8 * value);
}

// Logits in the thousands: their log-sum-exp is known to fewer places than the weights, which
// only differences decide.
TEST(Functionals, KnowTheOutputAsWellAsAttentionComputesIt) {
  for (uint64_t seed = 20; seed < 40; ++seed) {
    Case given(50, 8, seed, double_precision());
    given.scale *= 3000;
    given.errors = attention_errors(given.query, given.keys, given.values, given.scale, {}, given.arithmetic);
    const OutputFunctionals functionals = given.functionals();
    const Matrix output = given.output();
    double moved = 0, square = 0;
    for (int64_t c = 0; c < 8; ++c) {
      moved += functionals.output()[c] * (output(0, c) - functionals.output()[c]);
      square += output(0, c) * output(0, c);
    }
    EXPECT_LE(std::abs(moved), functionals.error(functionals.output()) + 10 * 0x1p-53 * square);
  }
}

// A value that is off is rounded with the part that it is of.
TEST(Functionals, CountThePartsOfValuesThatAreOffThemselves) {
  Case given(40, 4, 11, double_precision());
  Matrix off(40, 4);
  for (int64_t j = 0; j < 40; ++j) std::ranges::fill(off.row(j), 0.5);
  const auto bound = [&](double partials, const Matrix& value_errors) {
    Arithmetic arithmetic = double_precision();
    arithmetic.partials = partials;
    return attention_errors(given.query, given.keys, given.values, given.scale, {}, arithmetic,
                            {{}, value_errors})
        .own(0, 1);
  };
  const double added = bound(0, off) - bound(0, Matrix()),
               with_parts = bound(0x1p-8, off) - bound(0x1p-8, Matrix());
  EXPECT_NEAR(added, 0.5, 1e-9);
  EXPECT_NEAR(with_parts, 0.5 * (1 + 0x1p-8), 1e-9);
}

// Each component's own rounding gains nothing from the sum: outputs of parts that are rounded.
TEST(Functionals, CountThePartsThatAreRoundedApart) {
  Arithmetic arithmetic = with_16_bit_weights();
  const Case none(3000, 32, 8, arithmetic);
  arithmetic.partials = 0x1p-8;
  arithmetic.splits = 8;
  const Case few(3000, 32, 8, arithmetic);
  arithmetic.splits = 500;
  const Case many(3000, 32, 8, arithmetic);
  const auto gain = [](const Case& given) {
    const OutputFunctionals functionals = given.functionals();
    return functionals.error(functionals.output());
  };
  EXPECT_GT(gain(few), 1.1 * gain(none));
  EXPECT_LT(gain(few), 2.5 * gain(none));
  EXPECT_GT(gain(many), 2 * gain(few));
  arithmetic.splits = 8;
  const AttentionErrors unordered =
      attention_errors(few.query, few.keys, few.values, few.scale, {}, arithmetic, {{}, {}, false});
  const OutputFunctionals any(unordered, 0, few.values, {}, arithmetic);
  EXPECT_GT(any.error(any.output()), gain(many)) << "parts of tokens in an order that is not known";
  // Eight equal parts, each component of each rounded its own way.
  const OutputFunctionals functionals = few.functionals();
  const std::vector<double> weights = few.weights();
  double moved = 0;
  for (int64_t part = 0; part < 8; ++part) {
    for (int64_t c = 0; c < 32; ++c) {
      double sum = 0;
      for (int64_t j = part * 375; j < (part + 1) * 375; ++j) sum += weights[j] * few.values(j, c);
      moved += std::abs(functionals.output()[c]) * 0x1p-8 * std::abs(sum);
    }
  }
  EXPECT_LE(moved, gain(few) - gain(none) + 1e-9);
  EXPECT_GT(moved, 0.3 * (gain(few) - gain(none)));
}

// What weights lose below the normal range of their type has one sign for all components.
TEST(Functionals, CountWhatWeightsLoseForAllComponentsTogether) {
  Arithmetic arithmetic = double_precision();
  arithmetic.weights_floor = 0x1p-20;
  const Case given(3000, 32, 12, arithmetic);
  const OutputFunctionals functionals = given.functionals();
  std::vector<double> signs(32);
  test::Random random(13);
  for (double& sign : signs) sign = random.normal() < 0 ? -1 : 1;
  for (const std::vector<double>& direction : {functionals.output(), functionals.scale_direction(), signs}) {
    double worst = 0, by_components = 0;
    for (int64_t j = 0; j < 3000; ++j) {
      const VectorView row = given.values.row(j);
      worst += 0x1p-20 * std::abs(std::inner_product(direction.begin(), direction.end(), row.begin(), 0.0));
    }
    for (int64_t c = 0; c < 32; ++c) by_components += std::abs(direction[c]) * given.errors.output(0, c);
    EXPECT_LE(worst, functionals.error(direction));
    EXPECT_GT(worst, 0.7 * functionals.error(direction));
    EXPECT_GT(by_components, 3 * functionals.error(direction));
  }
  for (int64_t c = 0; c < 32; ++c) {
    double absolute = 0;
    for (int64_t j = 0; j < 3000; ++j) absolute += std::abs(given.values(j, c));
    EXPECT_LE(0x1p-20 * absolute, given.errors.lost(0, c));
    EXPECT_GT(0x1p-20 * absolute, 0.7 * given.errors.lost(0, c)) << "outputs are far below values";
  }
}

// Where one entry has nearly all of the weight, what all others lose or gain is a share of it.
TEST(Functionals, CountWhatLostWeightsDoToTheSumThatDivides) {
  Arithmetic arithmetic = double_precision();
  arithmetic.weights_floor = 0x1p-20;
  Case given(1000, 1, 14, arithmetic);
  given.keys = given.values = Matrix(1000, 1);
  given.query(0, 0) = given.values(7, 0) = 1;
  given.keys(7, 0) = 40;
  given.errors = attention_errors(given.query, given.keys, given.values, 1, {}, arithmetic);
  const double moved = 1 - 1 / (1 + 999 * 0x1p-20), error = given.functionals().error(std::vector{1.0});
  EXPECT_LE(moved, error);
  EXPECT_GT(moved, 0.9 * error);
}

}  // namespace
}  // namespace kvbound::reference::functionals_test
