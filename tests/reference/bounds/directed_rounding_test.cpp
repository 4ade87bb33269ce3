// Bounds against roundings that all go in the worst direction, one kind of rounding at a time: each bound
// must hold, and exceed the attained error by no more than its derivation says.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/bounds/softmax_errors.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

#include "directed.hpp"

namespace kvbound::test::directed_rounding_test {
namespace {

using namespace reference;

constexpr double kUnit = 0x1p-24;

double kinds(Arithmetic& arithmetic, const std::string& kind) {
  if (kind == "unit") return arithmetic.unit = kUnit;
  if (kind == "coarse unit") return arithmetic.unit = 0x1p-7;
  if (kind == "exponential") return arithmetic.exponential = 0x1p-12;
  if (kind == "input") return arithmetic.input = 0x1p-9;
  if (kind == "input floor") return arithmetic.input_floor = 0x1p-10;
  if (kind == "weights") return arithmetic.weights = 0x1p-9;
  if (kind == "weights floor") return arithmetic.weights_floor = 0x1p-15;
  if (kind == "tensor sums") return arithmetic.tensor_sums = 0x1p-10;
  if (kind == "tensor weighted sums") return arithmetic.tensor_weighted_sums = 0x1p-10;
  ADD_FAILURE() << kind;
  return 0;
}

Arithmetic only(const std::string& kind) {
  Arithmetic arithmetic = nothing_rounds();
  kinds(arithmetic, kind);
  return arithmetic;
}

// A logit to base 2: the scale and log2 e are rounded themselves and multiplied one after the other.
double logit(const Directed& round, VectorView query, VectorView key, double scale, int64_t chain) {
  return round(round(1.0) * round(round(1.0) * round.dot(query, key, chain) * scale));
}

TEST(DirectedRounding, OfALogitAttainsItsBound) {
  const int64_t dimensions = 32;
  const double scale = 0.25;
  const Matrix query = led(1, dimensions, 3), key = led(1, dimensions, 0.5);
  const double exact = attention_logits(query, key, scale)(0, 0);
  for (const int64_t chain : {-1, 5}) {
    for (const char* kind : {"unit", "coarse unit", "input", "tensor sums"}) {
      Arithmetic arithmetic = only(kind);
      arithmetic.product_depth = chain;
      Directed round(arithmetic);
      const double attained = logit(round.up(), query.row(0), key.row(0), scale, chain) - exact;
      const double bound = logit_errors(query, key, scale, arithmetic)(0, 0);
      expect_tight(attained, bound, kind == std::string("coarse unit") ? 1.3 : 1.0001, kind);
      EXPECT_LE(std::abs(logit(round.down(), query.row(0), key.row(0), scale, chain) - exact), bound);
    }
  }
}

TEST(DirectedRounding, OfNumbersBelowTheNormalRangeMovesLogits) {
  const Arithmetic arithmetic = only("input floor");
  for (const double query_size : {0.0, 1.0}) {
    for (const double key_size : {0.0, 1.0}) {
      const Matrix query = filled(1, 16, query_size), key = filled(1, 16, key_size);
      const double attained =
          0.5 * Directed(arithmetic).dot(query.row(0), key.row(0)) - 8 * query_size * key_size;
      expect_tight(attained, logit_errors(query, key, 0.5, arithmetic)(0, 0), 2.1);
    }
  }
}

TEST(DirectedRounding, OfProductsThatUnderflowLosesThemAll) {
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.smallest = 0x1p-20;
  const Matrix query = filled(1, 16, 0.999 * 0x1p-10), key = filled(1, 16, 0x1p-10);
  const double exact = attention_logits(query, key, 1)(0, 0);
  Directed round(arithmetic);
  EXPECT_EQ(round.down().dot(query.row(0), key.row(0)), 0);
  expect_tight(exact, logit_errors(query, key, 1, arithmetic)(0, 0), 5);
}

// The first logit is 0, all others are far below.
constexpr double kFarBelow = -20;

std::vector<double> exponentials(const Directed& round, int64_t tokens) {
  std::vector<double> terms(tokens, round.exp(kFarBelow));
  terms.front() = round.exp(0);
  return terms;
}

std::vector<double> exact_logits(int64_t tokens) {
  std::vector<double> logits(tokens, kFarBelow);
  logits.front() = 0;
  return logits;
}

// The mean of values 1 with these weights; sums in the numerator are rounded up, those
// in the denominator down.
double mean_of_ones(const Arithmetic& arithmetic, int64_t tokens, int64_t rescaled) {
  Directed round(arithmetic);
  const auto sum = [&] {
    const std::vector<double> terms = exponentials(round, tokens);
    double total = arithmetic.accumulation_depth < 0 ? round.sum(terms) : round.sum_in_pairs(terms);
    for (int64_t i = 0; i < rescaled; ++i) total = round(total);
    return total;
  };
  const double below = (round.down(), sum());
  return round.up()(round(sum()) / below);
}

AttentionErrors errors_of_one_leader(int64_t tokens, const Arithmetic& arithmetic) {
  Matrix keys = filled(tokens, 1, kFarBelow);
  keys(0, 0) = 0;
  return attention_errors(filled(1, 1, 1), keys, filled(tokens, 1, 1), 1, {}, arithmetic);
}

AttentionErrors errors_of_equal_logits(const Matrix& values, const Arithmetic& arithmetic) {
  return attention_errors(Matrix(1, 1), Matrix(values.rows(), 1), values, 1, {}, arithmetic);
}

TEST(DirectedRounding, OfTheSumsOfAnOutputAttainsItsBound) {
  for (const int64_t tokens : {256, 4096}) {
    Arithmetic arithmetic = only("unit");
    expect_tight(mean_of_ones(arithmetic, tokens, 0) - 1,
                 errors_of_one_leader(tokens, arithmetic).output(0, 0), tokens == 256 ? 1.5 : 1.1);
    arithmetic.rescalings = 2000;
    expect_tight(mean_of_ones(arithmetic, tokens, 2000) - 1,
                 errors_of_one_leader(tokens, arithmetic).output(0, 0), 4, "rescaled");
    arithmetic.accumulation_depth = tokens == 256 ? 8 : 12;
    arithmetic.rescalings = 0;
    expect_tight(mean_of_ones(arithmetic, tokens, 0) - 1,
                 errors_of_one_leader(tokens, arithmetic).output(0, 0), 12, "in pairs");
  }
}

TEST(DirectedRounding, OfOneWeightUpAndAllOthersDownCountsTwice) {
  const int64_t tokens = 100;
  const Arithmetic arithmetic = only("weights");
  Matrix values(tokens, 1);
  values(0, 0) = 1;
  const double above = 1 + arithmetic.weights, others = (tokens - 1) * (1 - arithmetic.weights);
  const double exact = 1.0 / static_cast<double>(tokens);
  expect_tight(above / (above + others) - exact, errors_of_equal_logits(values, arithmetic).output(0, 0),
               1.05);
}

// Tensor cores form one sum of the positive terms and one of the negative terms, which are
// off in opposite directions.
TEST(DirectedRounding, OfTensorCoresSumsMovesOutputs) {
  const Arithmetic arithmetic = only("tensor weighted sums");
  Matrix values = filled(10, 1, 1);
  expect_tight(arithmetic.tensor_weighted_sums, errors_of_equal_logits(values, arithmetic).output(0, 0),
               1.01);
  for (int64_t j = 0; j < 5; ++j) values(j, 0) = -1;
  const double up = 0.5 * (1 + arithmetic.tensor_weighted_sums),
               down = 0.5 * (1 - arithmetic.tensor_weighted_sums);
  expect_tight(up - down, errors_of_equal_logits(values, arithmetic).output(0, 0), 1.01);
}

TEST(DirectedRounding, OfWeightsThatAreLostBelowTheirTypesRange) {
  const int64_t tokens = 100;
  const Arithmetic arithmetic = only("weights floor");
  Matrix keys = filled(tokens, 1, std::log(arithmetic.weights_floor)), values = filled(tokens, 1, 1);
  keys(0, 0) = values(0, 0) = 0;
  const double others = (tokens - 1) * arithmetic.weights_floor, exact = others / (1 + others);
  expect_tight(exact, attention_errors(filled(1, 1, 1), keys, values, 1, {}, arithmetic).output(0, 0), 2.1);
}

// All weights but the first are moved up by what they may be off; only the first has a value.
TEST(DirectedRounding, OfWeightsBelowTheirTypesRangeMovesTheSumThatDivides) {
  const int64_t tokens = 100;
  const Arithmetic arithmetic = only("weights floor");
  Matrix keys = filled(tokens, 1, std::log(arithmetic.weights_floor)), values(tokens, 1);
  keys(0, 0) = 0;
  values(0, 0) = 1;
  const double others = (tokens - 1) * arithmetic.weights_floor;
  const double attained = 1 / (1 + others) - 1 / (1 + 2 * others);
  const AttentionErrors errors = attention_errors(filled(1, 1, 1), keys, values, 1, {}, arithmetic);
  expect_tight(attained, errors.output(0, 0), 1.1);
  EXPECT_LT(errors.weights(0, 0), 1e-9) << "a weight that is a score is not rounded";
}

// Values opposite to that of the leading weight are met by weights that were 0: their
// products and the sum move alike.
TEST(DirectedRounding, OfWeightsBelowTheirTypesRangeMovesProductsAndTheSum) {
  const int64_t tokens = 100;
  const Arithmetic arithmetic = only("weights floor");
  Matrix keys = filled(tokens, 1, -200), values = filled(tokens, 1, 1);
  keys(0, 0) = 0;
  values(0, 0) = -1;
  const double others = (tokens - 1) * arithmetic.weights_floor;
  expect_tight((others - 1) / (1 + others) + 1,
               attention_errors(filled(1, 1, 1), keys, values, 1, {}, arithmetic).output(0, 0), 1.05);
}

TEST(DirectedRounding, OfAPartsOutputBelowItsTypesRangeMovesOutputs) {
  const Arithmetic arithmetic = only("weights floor");
  expect_tight(arithmetic.weights_floor, errors_of_equal_logits(filled(10, 1, 0), arithmetic).output(0, 0),
               1.01);
}

// A value of 0 with an error is met by a weight that was 0 but for its rounding.
TEST(DirectedRounding, OfWeightsBelowTheirTypesRangeMeetsComputedValues) {
  const int64_t tokens = 100;
  const Arithmetic arithmetic = only("weights floor");
  Matrix keys = filled(tokens, 1, -200), values(tokens, 1), value_errors = filled(tokens, 1, 1000);
  keys(0, 0) = value_errors(0, 0) = 0;
  const double attained = (tokens - 1) * arithmetic.weights_floor * 1000;
  const AttentionErrors errors = attention_errors(filled(1, 1, 1), keys, values, 1, {}, arithmetic,
                                                  {.keys = {}, .values = value_errors});
  expect_tight(attained, errors.output(0, 0), 1.1);
}

TEST(DirectedRounding, OfStoredValuesMovesOutputs) {
  for (const char* kind : {"input", "input floor"}) {
    const Arithmetic arithmetic = only(kind);
    expect_tight(Directed(arithmetic).stored(1) - 1,
                 errors_of_equal_logits(filled(10, 1, 1), arithmetic).output(0, 0), 2.1, kind);
  }
}

TEST(DirectedRounding, OfExponentialsMovesWeightsOneAgainstTheOther) {
  Arithmetic arithmetic = only("exponential");
  Matrix values = filled(2, 1, 1);
  values(1, 0) = -1;
  for (const int64_t rescaled : {0, 30}) {
    arithmetic.rescalings = rescaled;
    Directed round(arithmetic);
    double first = round.up().exp(0), second = round.down().exp(0);
    for (int64_t i = 0; i < rescaled; ++i) {
      first *= round.up().exp(0);
      second *= round.down().exp(0);
    }
    const double attained = (first - second) / (first + second);
    const AttentionErrors errors = errors_of_equal_logits(values, arithmetic);
    expect_tight(attained, errors.output(0, 0), 1.1);
    EXPECT_GE(errors.weights(0, 0), first / (first + second) - 0.5);
  }
}

TEST(DirectedRounding, OfDifferencesFromALargeMaximumMovesWeights) {
  // Logit -80 is 80 away from the subtracted maximum; computed as differences from -80, the
  // two logits of 0 are too.
  const Arithmetic arithmetic = only("unit");
  Matrix keys(3, 1), values = filled(3, 1, 1);
  keys(2, 0) = -80;
  values(1, 0) = -1;
  Directed round(arithmetic);
  const double first = std::exp(round.down()(-80.0) + 80), second = std::exp(round.up()(-80.0) + 80);
  const AttentionErrors errors = attention_errors(filled(1, 1, 1), keys, values, 1, {}, arithmetic);
  expect_tight((first - second) / (first + second), errors.output(0, 0), 3);
}

TEST(DirectedRounding, OfWeightsThatUnderflowLosesThemAll) {
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.smallest = 0x1p-20;
  const int64_t tokens = 200;
  Matrix keys = filled(tokens, 1, std::log(0.99 * arithmetic.smallest)), values = filled(tokens, 1, 1);
  keys(0, 0) = 0;
  values(0, 0) = 0;
  const double exact = attention(filled(1, 1, 1), keys, values, 1).output(0, 0);
  expect_tight(exact, attention_errors(filled(1, 1, 1), keys, values, 1, {}, arithmetic).output(0, 0), 5);
}

TEST(DirectedRounding, OfLogitsIsTakenByTheEntriesThatHaveTheWeight) {
  // Half of the entries have their logits moved up, half down, as far as the error bound allows.
  const int64_t tokens = 64, dimensions = 40;
  const Arithmetic arithmetic = only("unit");
  const Matrix query = filled(1, dimensions, 1), keys = filled(tokens, dimensions, 0.5);
  Matrix values = filled(tokens, 1, 1);
  for (int64_t j = 1; j < tokens; j += 2) values(j, 0) = -1;
  const double off = logit_errors(query, keys, 1, arithmetic)(0, 0);
  expect_tight(std::tanh(off), attention_errors(query, keys, values, 1, {}, arithmetic).output(0, 0), 5);
}

TEST(DirectedRounding, OfALogSumExpAttainsItsBound) {
  const int64_t tokens = 1024;
  std::vector<double> logits(tokens);
  const auto log_sum_error = [&](const Arithmetic& arithmetic) {
    std::vector<double> exponents(logits.size());
    const rounding::SoftmaxErrors errors = rounding::softmax_errors(logits, exponents, arithmetic);
    return rounding::log_sum_exp_error(errors, tokens, arithmetic);
  };
  for (const char* kind : {"unit", "exponential"}) {
    const Arithmetic arithmetic = only(kind);
    Directed round(arithmetic);
    const bool is_unit = kind == std::string("unit");
    std::ranges::fill(logits, is_unit ? kFarBelow : 0);
    logits.front() = 0;
    std::vector<double> terms;
    for (const double z : logits) terms.push_back(round.up().exp(z));
    const double computed = round(0 + round.log(round.sum(terms)));
    expect_tight(computed - log_sum_exp(logits), log_sum_error(arithmetic), 1.2, kind);
  }
}

TEST(DirectedRounding, GrowthIsNeverBelowTheExponentialAndNotFarAbove) {
  for (double x = 1e-6; x < 600; x *= 1.07) {
    EXPECT_GE(rounding::growth(x), std::expm1(x)) << x;
    EXPECT_LE(rounding::growth(x), 1.2 * std::expm1(x)) << x;
  }
  EXPECT_EQ(rounding::growth(601), std::numeric_limits<double>::infinity());
}

// One head of one dimension with queries 1; keys are the logits: the first 0, the others `others`.
struct FlatLayer {
  FlatLayer(int64_t tokens, int64_t window, double others)
      : queries(1, window, 1), keys(1, tokens, 1), values(1, tokens, 1), projection(1, 1) {
    std::ranges::fill(queries.numbers(), 1.0);
    std::ranges::fill(keys.numbers(), others);
    keys.numbers().front() = 0;
    view.shape = {1, 1, 1, 1};
    view.scale = 1;
    view.queries = queries;
    view.keys = keys;
    view.values = values;
    view.output_projection = projection;
  }
  Tensor queries, keys, values;
  Matrix projection;
  LayerView view;
};

TEST(DirectedRounding, OfAWindowsMeanCountsItsQueries) {
  const int64_t window = 500;
  Arithmetic arithmetic = only("unit");
  arithmetic.accumulation_depth = 1;  // depth of sums over tokens, so that only sums over queries matter
  const FlatLayer layer(window, window, 0);
  const Matrix exact = window_attention(layer.view, window);
  Directed round(arithmetic);
  std::vector<double> weights;
  for (int64_t i = 0; i < window; ++i) weights.push_back(1 / static_cast<double>(i + 1));
  const double attained = round(round.sum(weights) / static_cast<double>(window)) - exact(0, 0);
  expect_tight(attained, window_attention_errors(layer.view, window, arithmetic)(0, 0), 1.3);
}

TEST(DirectedRounding, OfAStatedLogSumExpCountsRoundedWeightsAndAnotherBase) {
  const int64_t tokens = 100;
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.weights = 0x1p-9;
  arithmetic.weights_floor = 0x1p-15;
  const double others =
      (tokens - 1) * arithmetic.weights_floor;  // of a weight of 1 and others of nearly 0, all rounded up
  expect_tight(std::log1p(arithmetic.weights + others), stated_log_sum_exp_error(0, 0, tokens, arithmetic),
               2.1);
  arithmetic = only("unit");
  const Directed round(arithmetic);
  const double sum = 5;
  expect_tight(round(round(1.0) * sum) - sum, stated_log_sum_exp_error(0, sum, tokens, arithmetic), 1.6);
}

TEST(DirectedRounding, OfAWindowsWeightsCountsTheirOwnType) {
  const int64_t tokens = 1000;
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.score_weights = 0x1p-9;
  const FlatLayer equal(tokens, 1, 0);
  const double exact = window_attention(equal.view, 1)(0, 0), u = arithmetic.score_weights;
  // The weight is rounded up, the others in the sum that divides it down.
  expect_tight(exact * ((1 + u) / (1 - u) - 1), window_attention_errors(equal.view, 1, arithmetic)(0, 0),
               1.01);
  arithmetic.score_weights = 0;
  arithmetic.score_weights_floor = 0x1p-20;
  const FlatLayer single(tokens, 1, kFarBelow);  // others of nearly 0 are rounded up
  expect_tight(1 - 1 / (1 + (tokens - 1) * arithmetic.score_weights_floor),
               window_attention_errors(single.view, 1, arithmetic)(0, 0), 1.01);
}

TEST(DirectedRounding, OfAWindowsWeightsCountsTheTokens) {
  const int64_t tokens = 2000;
  const Arithmetic arithmetic = only("unit");
  const FlatLayer layer(tokens, 1, kFarBelow);
  Directed round(arithmetic);
  const double sum = log_sum_exp(exact_logits(tokens));
  const double below = round.sum((round.down(), exponentials(round, tokens)));
  expect_tight(round.up()(1 / below) - std::exp(-sum),
               window_attention_errors(layer.view, 1, arithmetic)(0, 0), 1.2);
  expect_tight(std::log(round.up().sum(exponentials(round, tokens))) - sum,
               window_log_sum_exp_errors(layer.view, 1, arithmetic)(0, 0), 1.2);
}

TEST(DirectedRounding, OfAGroupsMeanAttainsItsBound) {
  for (const char* kind : {"unit", "coarse unit"}) {
    const Arithmetic arithmetic = only(kind);
    const Matrix scores = led(8, 1, 1);
    Matrix errors(8, 1);
    errors(0, 0) = 0x1p-20;
    std::vector<double> moved(8, kSmall);
    moved[0] = 1 + 0x1p-20;
    Directed round(arithmetic);
    const double attained = round(round.sum(moved) / 8) - group_mean(scores, 8)(0, 0);
    expect_tight(attained, group_mean_errors(scores, errors, 8, arithmetic)(0, 0),
                 kind == std::string("unit") ? 1.0001 : 1.1, kind);
  }
}

TEST(DirectedRounding, OfAPoolIsTheNeighboursWorst) {
  Matrix scores(1, 9), errors(1, 9), moved(1, 9);
  scores(0, 4) = moved(0, 4) = 1;
  errors(0, 6) = 1.5;
  moved(0, 6) = 1.5;
  const Matrix pooled = max_pool(scores, 5), others = max_pool(moved, 5), bound = max_pool_errors(errors, 5);
  for (int64_t j = 0; j < 9; ++j) EXPECT_LE(others(0, j) - pooled(0, j), bound(0, j)) << j;
  EXPECT_EQ(bound(0, 3), 0);
}

double norm_of_projection(const Directed& round, VectorView value, const Matrix& projection, Norm norm) {
  std::vector<double> terms;
  for (int64_t c = 0; c < projection.cols(); ++c) {
    std::vector<double> column;
    for (int64_t k = 0; k < projection.rows(); ++k) column.push_back(projection(k, c));
    const double x = round.dot(value, column);
    terms.push_back(norm == Norm::l1 ? std::abs(x) : round(x * x));
  }
  const double sum = round.sum(terms);
  return norm == Norm::l1 ? sum : round(std::sqrt(sum));
}

TEST(DirectedRounding, OfProjectedNormsCountsBothProductsSums) {
  for (const Norm norm : {Norm::l1, Norm::l2}) {
    for (const auto& [dimensions, columns] : {std::pair(64, 4), {4, 64}}) {
      for (const char* kind : {"unit", "input", "tensor sums", "input floor"}) {
        const Arithmetic arithmetic = only(kind);
        const LayerShape shape{1, 1, dimensions, columns};
        Tensor values(1, 1, dimensions);
        std::ranges::fill(values.numbers(), kSmall);
        values.numbers().front() = 1;
        const Matrix projection = led(dimensions, columns, 0.5);
        const Matrix norms = projected_value_norms(shape, values, projection, norm);
        const double attained =
            norm_of_projection(Directed(arithmetic), values.view().slice(0).row(0), projection, norm) -
            norms(0, 0);
        const Matrix errors = projected_value_norm_errors(shape, values, projection, norm, norms, arithmetic);
        const bool is_floor = kind == std::string("input floor");
        const double slack = is_floor           ? 12
                             : norm == Norm::l1 ? 1.1
                                                : 2.2;  // in L2 the bound uses the triangle inequality
        expect_tight(attained, errors(0, 0), slack, kind);
      }
    }
  }
}

// The first term of each chain is nearly all of the norm, so that every step of it errs by as much as it may.
TEST(DirectedRounding, OfChainedTensorSumsAttainsTheBoundOfNorms) {
  const LayerShape shape{1, 1, 6 * 16, 8};
  for (const int64_t chain : {2, 3, 4, 6}) {
    for (const double input : {0.0, 0x1p-9}) {
      Arithmetic arithmetic = only("tensor sums");
      arithmetic.tensor_chain = chain;
      arithmetic.input = input;
      Tensor values(1, 1, shape.head_dim);
      for (int64_t c = 0; c < shape.head_dim; ++c) values.numbers()[c] = c % (16 * chain) == 0 ? 1 : kSmall;
      const Matrix projection = filled(shape.head_dim, shape.model_dim, 0.5);
      for (const Norm norm : {Norm::l1, Norm::l2}) {
        const Matrix norms = projected_value_norms(shape, values, projection, norm);
        const double attained =
            norm_of_projection(Directed(arithmetic), values.view().slice(0).row(0), projection, norm) -
            norms(0, 0);
        const Matrix errors = projected_value_norm_errors(shape, values, projection, norm, norms, arithmetic);
        expect_tight(attained, errors(0, 0), 1.02, "chains of " + std::to_string(chain));
      }
    }
  }
}

// The same of logits.
TEST(DirectedRounding, OfChainedTensorSumsAttainsTheBoundOfLogits) {
  const int64_t dimensions = 6 * 16;
  for (const int64_t chain : {2, 3, 4, 6}) {
    for (const char* kind : {"", "input", "input floor"}) {
      Arithmetic arithmetic = only("tensor sums");
      arithmetic.tensor_chain = chain;
      if (*kind) kinds(arithmetic, kind);
      Matrix query = filled(1, dimensions, 3), key = filled(1, dimensions, kSmall);
      for (int64_t c = 0; c < dimensions; c += 16 * chain) key(0, c) = 0.5;
      const double exact = attention_logits(query, key, 2)(0, 0);
      const double attained = 2 * Directed(arithmetic).dot(query.row(0), key.row(0)) - exact;
      expect_tight(attained, logit_errors(query, key, 2, arithmetic)(0, 0), *kind == 0 ? 1.01 : 2.1,
                   "chains of " + std::to_string(chain) + " " + kind);
    }
  }
}

// Where running sums cancel, chains add little.
TEST(DirectedRounding, OfChainedTensorSumsIsAShareOfTheRunningSums) {
  Arithmetic chained = only("tensor sums"), single = chained;
  chained.tensor_chain = 4;
  Matrix query = filled(1, 64, 1), key = filled(1, 64, 1);
  for (int64_t c = 0; c < 64; c += 2) key(0, c) = -1;
  const double attained = std::abs(Directed(chained).dot(query.row(0), key.row(0)));
  expect_tight(attained, logit_errors(query, key, 1, chained)(0, 0), 1.01);
  EXPECT_LT(logit_errors(query, key, 1, chained)(0, 0), 1.01 * logit_errors(query, key, 1, single)(0, 0));
}

TEST(DirectedRounding, OfSquaresThatUnderflowLosesTheNorm) {
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.smallest = 0x1p-40;
  const LayerShape shape{1, 1, 1, 16};
  Tensor values(1, 1, 1);
  values.numbers().front() = 1;
  const Matrix projection = filled(1, 16, 0.999 * 0x1p-20);
  for (const Norm norm : {Norm::l1, Norm::l2}) {
    const Matrix norms = projected_value_norms(shape, values, projection, norm);
    const double computed =
        norm_of_projection(Directed(arithmetic).down(), values.view().slice(0).row(0), projection, norm);
    const Matrix errors = projected_value_norm_errors(shape, values, projection, norm, norms, arithmetic);
    EXPECT_LE(norms(0, 0) - computed, errors(0, 0));
    EXPECT_LE(errors(0, 0), 2 * norms(0, 0));
  }
}

TEST(DirectedRounding, OfStageTwoScoresCountsHeadsAndFactors) {
  const Arithmetic arithmetic = only("unit");
  const int64_t heads = 32;
  const Matrix none(heads, 1), terms = led(heads, 1, heads), ones = filled(heads, 1, 1);
  Directed round(arithmetic);
  const double score = round(round(round.sum(terms.numbers()) / heads)), norm = score;
  const double exact = group_mean(terms, heads)(0, 0);
  expect_tight(
      round(score * norm) - exact * exact,
      stage_two_score_errors(terms, none, terms, none, 0, GqaProduct::product_of_means, arithmetic).front(),
      1.1);
  std::vector<double> products;
  for (const double term : terms.numbers()) products.push_back(round(round(term + 0) * term));
  expect_tight(
      round(round.sum(products) / heads) - stage_two_scores(terms, terms, 0, GqaProduct::mean_of_products)[0],
      stage_two_score_errors(terms, none, terms, none, 0, GqaProduct::mean_of_products, arithmetic).front(),
      2.2);
  for (const GqaProduct gqa : {GqaProduct::product_of_means, GqaProduct::mean_of_products}) {
    // Both factors are 1 with an error of 1: (1 + 1)(1 + 1) - 1.
    expect_tight(3, stage_two_score_errors(ones, ones, ones, ones, 0, gqa, nothing_rounds()).front(), 1.001);
  }
}

}  // namespace
}  // namespace kvbound::test::directed_rounding_test
