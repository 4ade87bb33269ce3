#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/functionals.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::functionals_by_chance_test {
namespace {

constexpr double kUnit = 0x1p-8;

double inner(VectorView a, VectorView b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

double rounded(double number) {
  if (number == 0) return 0;
  const double spacing = std::ldexp(2 * kUnit, std::ilogb(number));
  return std::nearbyint(number / spacing) * spacing;
}

double deviation(const ChanceError& error) { return std::sqrt(error.variance); }
// One query's attention over random keys and values.
struct Case {
  Case(int64_t tokens, int64_t head_dim, uint64_t seed, const Arithmetic& arithmetic_, double logits = 1)
      : query(1, head_dim), keys(tokens, head_dim), values(tokens, head_dim), arithmetic(arithmetic_) {
    test::Random random(seed);
    for (Matrix* matrix : {&query, &keys, &values}) {
      for (int64_t j = 0; j < matrix->rows(); ++j) {
        for (double& number : matrix->row(j)) number = random.normal();
      }
    }
    scale = logits / std::sqrt(static_cast<double>(head_dim));
    judge();
  }

  void judge() { errors = attention_errors(query, keys, values, scale, {}, arithmetic); }
  OutputFunctionals functionals() const { return {errors, 0, values, {}, arithmetic}; }
  ChanceError chance(VectorView direction) const { return functionals().chance(direction).value(); }
  ChanceError gain() const {
    const OutputFunctionals all = functionals();
    return all.chance(all.output()).value();
  }
  // <o, o^ - o> for weights that are changed one by one. The largest is 1.
  double moved(const std::function<double(double)>& change, bool divided_by_changed) const {
    const VectorView logs = errors.log_weights.row(0);
    const double largest = *std::ranges::max_element(logs);
    std::vector<double> output(values.cols());
    double sum = 0;
    for (int64_t j = 0; j < values.rows(); ++j) {
      const double weight = std::exp(logs[j] - largest), other = change(weight);
      sum += divided_by_changed ? other : weight;
      for (size_t c = 0; c < output.size(); ++c) output[c] += other * values.row(j)[c];
    }
    for (double& number : output) number /= sum;
    const std::vector<double> right = functionals().output();
    return inner(right, output) - inner(right, right);
  }

  Matrix query, keys, values;
  Arithmetic arithmetic;
  double scale = 1;
  AttentionErrors errors;
};

Arithmetic with_16_bit_weights() {
  Arithmetic arithmetic = double_precision();
  arithmetic.weights = kUnit;
  return arithmetic;
}

Arithmetic with_16_bit_parts() {
  Arithmetic arithmetic = double_precision();
  arithmetic.partials = kUnit;
  arithmetic.splits = 4;
  return arithmetic;
}

// Roundings of weights to 16 bits stay within a few deviations, rows together too, and the
// deviation is not far from theirs.
TEST(FunctionalsByChance, AreWhatRoundedWeightsDo) {
  for (const bool divided_by_rounded : {true, false}) {
    constexpr int kRows = 60;
    double squares = 0, all = 0;
    ChanceError sum;
    for (uint64_t seed = 0; seed < kRows; ++seed) {
      const Case given(900, 16, 100 + seed, with_16_bit_weights());
      const ChanceError error = given.gain();
      const double moved = given.moved(rounded, divided_by_rounded);
      EXPECT_LE(std::abs(moved), error.bias + error.alike() + 4 * deviation(error)) << seed;
      squares += moved * moved / error.variance;
      sum.add(error);
      all += moved;
    }
    EXPECT_LT(squares, kRows);
    EXPECT_GT(squares, 0.03 * kRows);
    EXPECT_LE(std::abs(all), sum.bias + sum.alike() + 4 * deviation(sum));
    EXPECT_LT(sum.alike(), 3 * deviation(sum)) << "phases at random";
  }
}

// The worst case of one row is many deviations.
TEST(FunctionalsByChance, AreFarBelowTheWorstCase) {
  const Case given(4000, 64, 6, with_16_bit_weights());
  const OutputFunctionals all = given.functionals();
  const ChanceError error = given.gain();
  EXPECT_LT(3 * (error.bias + error.alike() + 5 * deviation(error)), all.error(all.output()));
  EXPECT_GT(all.error(all.output()), 30 * deviation(error));
}

// Logits so near to each other that all weights are rounded to 1: as if they were equal, in every row.
TEST(FunctionalsByChance, CountWeightsThatAreRoundedAlikeInFull) {
  double all = 0;
  ChanceError sum;
  for (uint64_t seed = 0; seed < 800; ++seed) {
    const Case given(60, 64, 3000 + seed, with_16_bit_weights(), 0.0006);
    const std::vector<double> scale = given.functionals().scale_direction();
    const ChanceError error = given.chance(scale);
    all += inner(scale, scale);  // the logit scale is 0 instead of 1
    sum.add(error);
  }
  EXPECT_LT(all, sum.bias + sum.alike());
  EXPECT_GT(all, 6 * deviation(sum)) << "roundings at random would not do it";
}

TEST(FunctionalsByChance, AreWhatRoundedPartsDo) {
  constexpr int kRows = 60;
  double squares = 0;
  for (uint64_t seed = 0; seed < kRows; ++seed) {
    const Case given(400, 16, 500 + seed, with_16_bit_parts());
    const OutputFunctionals functionals = given.functionals();
    const std::vector<double> merged = functionals.merged(), output = functionals.output();
    const double moved = inner(output, merged) - inner(output, output);
    const ChanceError error = given.gain();
    EXPECT_LE(std::abs(moved), error.bias + error.alike() + 4 * deviation(error)) << seed;
    squares += moved * moved / error.variance;
    for (size_t c = 0; c < output.size(); ++c) {
      EXPECT_NE(merged[c], output[c]);
      EXPECT_NEAR(merged[c], output[c], 4 * kUnit * 0.3);
    }
  }
  EXPECT_LT(squares, kRows);
  EXPECT_GT(squares, 0.01 * kRows);
}

// Rows whose outputs are equal are rounded alike: with w = o, numbers of both signs towards, or from, 0.
TEST(FunctionalsByChance, CountPartsThatAreRoundedAlikeInFull) {
  Case given(40, 16, 1, with_16_bit_parts());
  for (int64_t j = 0; j < 40; ++j) {
    for (int64_t c = 0; c < 16; ++c) given.values(j, c) = (c % 2 == 0 ? 1 : -1) * (1 + 0.75 * kUnit);
  }
  given.judge();
  const OutputFunctionals functionals = given.functionals();
  const std::vector<double> merged = functionals.merged();
  EXPECT_NEAR(merged[0], 1, 1e-12);
  EXPECT_NEAR(merged[1], -1, 1e-12);
  ChanceError sum;
  double all = 0;
  for (int row = 0; row < 200; ++row) {
    sum.add(given.gain());
    all += inner(functionals.output(), functionals.output()) - inner(functionals.output(), merged);
  }
  EXPECT_LT(all, sum.bias + sum.alike());
  EXPECT_GT(all, 8 * deviation(sum));
}

// Sums of products whose every block of 8 loses what is below 24 bits.
TEST(FunctionalsByChance, CountTruncationInFull) {
  const auto truncated = [](double number) {
    if (number == 0) return 0.0;
    const double spacing = std::ldexp(0x1p-23, std::ilogb(number));
    return std::trunc(number / spacing) * spacing;
  };
  double all = 0, bias = 0;
  ChanceError sum;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Arithmetic arithmetic = tensor_core_precision();
    const Case given(2000, 16, 700 + seed, arithmetic);
    const std::vector<double> output = given.functionals().output();
    for (int64_t c = 0; c < 16; ++c) {
      double running = 0, exact = 0;
      for (int64_t j = 0; j < 2000; ++j) {
        const double term = std::exp(given.errors.log_weights(0, j)) * given.values(j, c);
        running += term;
        exact += term;
        if (j % 8 == 7) running = truncated(running);
      }
      all += output[c] * (running - exact);
    }
    sum.add(given.gain());
    bias = sum.bias;
  }
  EXPECT_LT(all, 0) << "towards 0";
  EXPECT_LT(-all, bias);
  EXPECT_GT(-all, 0.05 * bias);
}

// Sums of products of one sign, each of which loses what is below 24 bits of the sum before it.
TEST(FunctionalsByChance, CountTheTruncationOfProductsInFull) {
  Case given(4000, 8, 31, tensor_core_precision());
  for (int64_t j = 0; j < 4000; ++j) {
    for (double& number : given.values.row(j)) number = 1 + std::abs(number);
  }
  given.judge();
  const std::vector<double> output = given.functionals().output();
  double all = 0;
  for (int64_t c = 0; c < 8; ++c) {
    double running = 0, exact = 0;
    for (int64_t j = 0; j < 4000; ++j) {
      const double term = std::exp(given.errors.log_weights(0, j)) * given.values(j, c);
      const double spacing = std::ldexp(0x1p-23, std::ilogb(std::max(running, term)));
      running += std::trunc(term / spacing) * spacing;
      exact += term;
    }
    all += output[c] * (running - exact);
  }
  EXPECT_LT(all, 0) << "towards 0";
  EXPECT_LT(-all, given.gain().bias);
  EXPECT_GT(-all, 0.2 * given.gain().bias);
}

TEST(FunctionalsByChance, CountFurtherRoundings) {
  const Case exact(1500, 32, 9, single_precision()), declared(1500, 32, 9, [] {
    Arithmetic arithmetic = single_precision();
    arithmetic.weights = kUnit;
    return arithmetic;
  }());
  const ChanceError without = exact.gain(), with = declared.gain();
  EXPECT_NEAR(without.variance + kUnit * kUnit * without.by_weights, with.variance, 0.3 * with.variance);
  EXPECT_GT(with.variance, 1e4 * without.variance);
  const Case parts(1500, 32, 9, [] {
    Arithmetic arithmetic = single_precision();
    arithmetic.partials = kUnit;
    arithmetic.splits = 8;
    return arithmetic;
  }());
  const double added = kUnit * kUnit * without.by_parts;
  EXPECT_GT(added, 0.05 * parts.gain().variance);
  EXPECT_LT(added, 2 * parts.gain().variance);
  // Factors of 10 bits move logits by up to 2^-10 of the sum of their terms' sizes.
  EXPECT_GT(without.by_products, 0);
  EXPECT_LT(without.by_products, 1e3 * without.by_weights);
}

// Logits with an error of their own each.
TEST(FunctionalsByChance, AreWhatErrorsOfLogitsDo) {
  constexpr int kRows = 30;
  test::Random random(5);
  Arithmetic arithmetic = double_precision();
  arithmetic.tensor_sums = 0x1p-14;
  double squares = 0;
  for (uint64_t seed = 0; seed < kRows; ++seed) {
    const Case given(600, 16, 900 + seed, arithmetic);
    const double share = *std::ranges::min_element(given.errors.logits.row(0));
    const double moved = given.moved(
        [&](double weight) { return weight * std::exp(share * (random.index(2) == 0 ? 1 : -1)); }, true);
    const ChanceError error = given.gain();
    EXPECT_LE(std::abs(moved), error.bias + 5 * deviation(error));
    squares += moved * moved / error.variance;
  }
  EXPECT_GT(squares, 0.02 * kRows);
}

TEST(FunctionalsByChance, SayNothingOfRoundingsThatRowsShare) {
  Case given(50, 8, 3, with_16_bit_weights());
  const std::vector<double> output = given.functionals().output();
  EXPECT_TRUE(given.functionals().chance(output));
  given.arithmetic.input = 0x1p-9;
  given.judge();
  EXPECT_FALSE(given.functionals().chance(output)) << "of stored inputs";
  given.arithmetic.input = 0;
  Matrix off(50, 8);
  given.errors =
      attention_errors(given.query, given.keys, given.values, given.scale, {}, given.arithmetic, {{}, off});
  EXPECT_TRUE(given.functionals().chance(output));
  off(7, 3) = 1e-9;
  given.errors =
      attention_errors(given.query, given.keys, given.values, given.scale, {}, given.arithmetic, {{}, off});
  EXPECT_FALSE(given.functionals().chance(output)) << "of computed values";
}

}  // namespace
}  // namespace kvbound::reference::functionals_by_chance_test
