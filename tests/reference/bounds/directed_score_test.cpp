// Bounds on entries' scores and on the measures of a compressed cache, against roundings that all
// go in the worst direction.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/h2o.hpp>

#include "directed.hpp"

namespace kvbound::test::directed_score_test {
namespace {

using namespace reference;

Arithmetic rounding_unit(double unit = 0x1p-24) {
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.unit = unit;
  return arithmetic;
}

// One query and the entries that it scores.
struct Scored {
  Matrix query, keys, values, projection;
  Space space = Space::head;

  double score(Change change, int64_t entry) const {
    const std::vector<ValueSpace> spaces = value_spaces(space, projection, 1);
    const Matrix norms = squared_norms(values, spaces);
    const ScoredCache cache{keys, values, norms, spaces};
    return scored_attention(change, query, cache, 1).scores(0, entry);
  }
  double bound(Change change, int64_t entry, const Arithmetic& arithmetic) const {
    const std::vector<ChangeSpace> spaces = change_spaces(space, projection, 1);
    return change_score_errors(change, query, keys, values, MeasuredValues(values, spaces), spaces, 1,
                               arithmetic)(0, entry);
  }
};

// Sums of many terms, the first of which dominates.
Scored long_sums(int64_t entries, int64_t dimensions, Space space, int64_t model_dim) {
  Scored given{Matrix(1, dimensions), Matrix(entries, dimensions), led(1, dimensions, 1),
               led(dimensions, model_dim, 1), space};
  for (int64_t j = 1; j < entries; ++j) given.values.append_row(given.values.row(0));
  return given;
}

double squared_length(const Directed& round, const Scored& given) {
  const VectorView value = given.values.row(0);
  if (given.space == Space::head) return round.dot(value, value);
  std::vector<double> squares;
  for (int64_t c = 0; c < given.projection.cols(); ++c) {
    std::vector<double> column;
    for (int64_t k = 0; k < given.projection.rows(); ++k) column.push_back(given.projection(k, c));
    const double x = round.dot(value, column);
    squares.push_back(round(x * x));
  }
  return round.sum(squares);
}

TEST(DirectedScores, CountTheTypeThatWeightsAreRoundedTo) {
  const Scored given{filled(1, 1, 0), filled(4, 1, 1), filled(4, 1, 3), {}, Space::head};
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.score_weights = 0x1p-9;
  const double exact = given.score(Change::value, 0), u = arithmetic.score_weights,
               moved = (1 + u) / (1 - u);  // and the others, in the sum that divides it, the other way
  expect_tight(exact * (moved * moved - 1), given.bound(Change::value, 0, arithmetic), 1.01);
}

TEST(DirectedScores, CountBothProductsOfASquaredLength) {
  for (const Space space : {Space::head, Space::projected}) {
    for (const auto& [dimensions, model_dim] : {std::pair(1000, 4), {4, 1000}}) {
      if (space == Space::head && dimensions == 4) continue;
      const Scored given = long_sums(1, dimensions, space, model_dim);
      Arithmetic arithmetic = rounding_unit();
      const double exact = given.score(Change::value, 0);
      expect_tight(squared_length(Directed(arithmetic), given) - exact,
                   given.bound(Change::value, 0, arithmetic), 1.2, "unit");
      arithmetic = nothing_rounds();
      arithmetic.input = 0x1p-9;
      expect_tight(squared_length(Directed(arithmetic), given) - exact,
                   given.bound(Change::value, 0, arithmetic), 1.1, "input");
      arithmetic = nothing_rounds();
      arithmetic.input_floor = 0x1p-10;
      EXPECT_LE(squared_length(Directed(arithmetic), given) - exact,
                given.bound(Change::value, 0, arithmetic));
    }
  }
}

TEST(DirectedScores, CountInnerProductsThatCancel) {
  // Both values equal the output: the exact score is 0, but its three inner products are rounded differently.
  for (const Space space : {Space::head, Space::projected}) {
    Scored given = long_sums(2, 1000, space, 4);
    given.query(0, 0) = given.keys(0, 0) = given.keys(1, 0) = 1;
    const Arithmetic arithmetic = rounding_unit();
    Directed round(arithmetic);
    const double longer = squared_length(round.up(), given), shorter = squared_length(round.down(), given);
    EXPECT_NEAR(given.score(Change::key, 0), 0, 1e-12);
    expect_tight(0.25 * (2 * longer - 2 * shorter), given.bound(Change::key, 0, arithmetic), 1.3);
  }
}

TEST(DirectedScores, CountTheErrorOfTheWeight) {
  const int64_t entries = 4000;
  Scored given{filled(1, 1, 1), filled(entries, 1, -20), filled(entries, 1, 1), {}, Space::head};
  given.keys(0, 0) = 0;
  const Arithmetic arithmetic = rounding_unit();
  Directed round(arithmetic);
  std::vector<double> terms(entries, std::exp(-20.0));
  terms.front() = 1;
  const double weight = round.up()(1 / round.down().sum(terms)), exact = given.score(Change::value, 0);
  expect_tight(weight * weight - exact, given.bound(Change::value, 0, arithmetic), 1.1);
}

// One entry with a logit and a value, among many whose logits and values are 0.
Scored one_of_many(int64_t dimensions) {
  Scored given{led(1, dimensions, 1), Matrix(64, dimensions), Matrix(64, dimensions), {}, Space::head};
  std::ranges::copy(given.query.row(0), given.keys.row(0).begin());
  given.values(0, 0) = 1;
  return given;
}

TEST(DirectedScores, CountTheErrorOfTheLogit) {
  const Scored given = one_of_many(1000);
  const Arithmetic arithmetic = rounding_unit();
  const double logit = Directed(arithmetic).dot(given.query.row(0), given.keys.row(0));
  const double weight = std::exp(logit) / (std::exp(logit) + 63), apart = 1 - weight;
  expect_tight(std::pow(weight * logit * apart, 2) - given.score(Change::key, 0),
               given.bound(Change::key, 0, arithmetic), 1.7, "key");
  expect_tight(std::pow(weight * (1 + logit * apart), 2) - given.score(Change::joint, 0),
               given.bound(Change::joint, 0, arithmetic), 1.7, "joint");
}

TEST(DirectedScores, CountTheErrorOfTheOutput) {
  // The output is the first entry's value, and its sums are off as far as the model allows.
  const int64_t entries = 4000;
  Scored given{filled(1, 1, 1), filled(entries, 1, -10), Matrix(entries, 1), {}, Space::head};
  given.keys(0, 0) = 0;
  given.values(0, 0) = 1e6;
  const Arithmetic arithmetic = rounding_unit();
  Directed round(arithmetic);
  std::vector<double> terms(entries, std::exp(-10.0));
  terms.front() = 1;
  const double below = round.down().sum(terms);
  std::vector<double> numerators(entries);
  numerators.front() = 1e6;
  const double output = round.up()(round.sum(numerators) / below), weight = round(terms[1] / below);
  expect_tight(std::pow(weight * 10 * output, 2) - given.score(Change::key, 1),
               given.bound(Change::key, 1, arithmetic), 1.3, "key");
  expect_tight(std::pow(weight * 10 * output, 2) - given.score(Change::joint, 1),
               given.bound(Change::joint, 1, arithmetic), 1.3, "joint");
  EXPECT_LE(std::pow(weight * output / (1 - weight), 2) - given.score(Change::exact, 1),
            given.bound(Change::exact, 1, arithmetic));
}

TEST(DirectedScores, CountTensorCoresErrorOfTheOutput) {
  // The output is the first entry's value, the second entry's is 0.
  Scored given{filled(1, 1, 1), filled(2, 1, -3), Matrix(2, 1), {}, Space::head};
  given.keys(0, 0) = 0;
  given.values(0, 0) = 1;
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.tensor_weighted_sums = 0x1p-10;
  const double sum = 1 + std::exp(-3.0), weight = std::exp(-3.0) / sum;
  expect_tight(
      std::pow(weight * 3 * (1 + arithmetic.tensor_weighted_sums) / sum, 2) - given.score(Change::key, 1),
      given.bound(Change::key, 1, arithmetic), 1.1);
}

TEST(DirectedScores, CountTensorCoresErrorOfTheProductOfValueAndOutput) {
  // The output is the second entry's value, the negative of the first entry's, whose weight is small.
  Scored given{filled(1, 1, 1), filled(2, 1, 0), filled(2, 1, -1), {}, Space::head};
  given.keys(0, 0) = -40;
  given.values(0, 0) = 1;
  const double weight = std::exp(-40.0), off = 0x1p-10, exact = given.score(Change::key, 0);
  const double moved = std::pow(weight * 40, 2) * (1 + 2 * (1 + off) + 1);
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.tensor_lengths = off;
  expect_tight(moved - exact, given.bound(Change::key, 0, arithmetic), 1.01, "sums");
  arithmetic = nothing_rounds();
  arithmetic.lengths_floor = off;  // of the output's only number
  expect_tight(moved - exact, given.bound(Change::key, 0, arithmetic), 1.01, "floor");
}

// Of the length 18 of 9 W, by a factor whose products with it are off by as much as they may.
TEST(DirectedScores, CountErrorsOfALengthByTheFactorOfAGramMatrix) {
  const Scored given{filled(1, 1, 1), filled(1, 1, 1), filled(1, 1, 3), filled(1, 1, 2), Space::projected};
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.tensor_lengths = 0x1p-9;
  const double products = given.bound(Change::value, 0, arithmetic);  // with an output, which `value` has not
  arithmetic.gram_factor = true;
  expect_tight(given.score(Change::value, 0) * (std::pow(1 + arithmetic.tensor_lengths, 2) - 1),
               given.bound(Change::value, 0, arithmetic) - products, 1.01, "tensor cores");
  Arithmetic one = nothing_rounds(), none = nothing_rounds();
  one.gram_factor = none.gram_factor = true;
  one.unit = none.unit = 0x1p-24;
  one.length_depth = 1;
  none.length_depth = 0;
  expect_tight(given.score(Change::value, 0) * (2 + 1) * 0x1p-24,
               given.bound(Change::value, 0, one) - given.bound(Change::value, 0, none), 1.01, "additions");
}

TEST(DirectedScores, CountWhatIsLeftOfAnOutputsLargestNumberWhereAValueMeetsOthers) {
  // W makes the first number of an output a million times the second, which alone meets a number of
  // the first entry's value.
  Scored given{filled(1, 2, 1), filled(2, 2, 0), Matrix(2, 2), Matrix(2, 2), Space::projected};
  given.keys(0, 0) = -40;
  given.values(0, 1) = 1000;
  given.values(1, 0) = -1;
  given.projection(0, 0) = 1000;
  given.projection(1, 1) = 1;
  const double weight = std::exp(-40.0), largest = 1e6;
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.lengths_floor = 0x1p-10;
  expect_tight(std::pow(weight * 40, 2) * 2 * 1000 * arithmetic.lengths_floor * largest,
               given.bound(Change::key, 0, arithmetic), 1.01);
}

TEST(DirectedScores, CountWhatWeightsBelowTheirTypesRangeTakeFromTheOutput) {
  // The leading entry's value is the output, whose other weights are 0 but for what they may be off by.
  const int64_t entries = 100;
  Scored given{filled(1, 1, 1), filled(entries, 1, -200), filled(entries, 1, 2), {}, Space::head};
  given.keys(0, 0) = given.values(0, 0) = 1;
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.weights_floor = 0x1p-15;
  EXPECT_NEAR(given.score(Change::key, 0), 0, 1e-12);
  expect_tight(std::pow((entries - 1) * arithmetic.weights_floor * 2, 2),
               given.bound(Change::key, 0, arithmetic), 4.2);
}

TEST(DirectedScores, CountWhatIsLeftWithoutAnEntry) {
  // The first two entries share nearly all weight; 1 - A inherits the error of A.
  const int64_t entries = 4000;
  Scored given{filled(1, 1, 1), filled(entries, 1, -20), Matrix(entries, 1), {}, Space::head};
  given.keys(0, 0) = given.keys(1, 0) = 0;
  given.values(0, 0) = 1;
  given.values(1, 0) = -1;
  const Arithmetic arithmetic = rounding_unit();
  Directed round(arithmetic);
  std::vector<double> terms(entries, std::exp(-20.0));
  terms[0] = terms[1] = 1;
  const double weight = round.up()(1 / round.down().sum(terms));
  expect_tight(std::pow(weight / (1 - weight), 2) - given.score(Change::exact, 0),
               given.bound(Change::exact, 0, arithmetic), 4);
}

TEST(DirectedScores, OfGroupsAndRunningSumsAttainTheirBounds) {
  const Arithmetic arithmetic = rounding_unit();
  const Directed round(arithmetic);
  const Matrix scores = led(8, 1, 1);
  Matrix errors(8, 1);
  errors(0, 0) = 0x1p-20;
  std::vector<double> moved(scores.numbers().begin(), scores.numbers().end());
  moved[0] += errors(0, 0);
  expect_tight(round.sum(moved) - group_sum(scores, 8)(0, 0),
               group_sum_errors(scores, errors, 8, arithmetic)(0, 0), 1.0001);
  double sum = 1, computed = 1 + 1e-5, error = 1e-5;
  for (int step = 0; step < 500; ++step) {
    sum += 0.01;
    computed = round(computed + 0.01 + 1e-6);
    error = running_sum_error(sum, error, 1e-6, arithmetic);
  }
  expect_tight(computed - sum, error, 1.0001);
}

TEST(DirectedScores, OfAWindowsSumCountItsQueries) {
  const int64_t window = 1000;
  Tensor queries(1, window, 1), keys(1, window + 1, 1), values(1, window + 1, 1);
  values.numbers()[0] = 1;
  LayerView layer;
  layer.shape = {1, 1, 1, 1};
  layer.queries = queries;
  layer.keys = keys;
  layer.values = values;
  const Matrix projection(1, 1);
  layer.output_projection = projection;
  Arithmetic arithmetic = rounding_unit();
  arithmetic.accumulation_depth = 1;
  std::vector<double> terms;
  for (int64_t i = 0; i < window; ++i) terms.push_back(std::pow(static_cast<double>(i + 2), -2.0));
  const double exact = window_scores(layer, window, Change::value, Space::head)(0, 0);
  expect_tight(Directed(arithmetic).sum(terms) - exact,
               window_score_errors(layer, window, Change::value, Space::head, arithmetic)(0, 0), 1.3);
  const Matrix mean = window_attention_errors(layer, window, arithmetic);
  const Matrix sum = accumulated_attention_errors(layer, window, arithmetic);
  EXPECT_EQ(sum(0, 0), static_cast<double>(window) * mean(0, 0));
}

TEST(DirectedScores, ThereIsNoBoundForAChangeByWhichNoPolicyScores) {
  const Scored given = long_sums(2, 2, Space::head, 1);
  EXPECT_THROW(given.bound(Change::slot, 0, rounding_unit()), InvalidPolicy);
}

// One query head over a cache in which only some entries are kept.
struct Compressed {
  Matrix query, keys, values, projection;
  std::vector<int64_t> kept;

  PerturbationErrors errors(const Arithmetic& arithmetic) const {
    Matrix kept_keys, kept_values, norms(1, keys.rows());
    for (const int64_t i : kept) {
      kept_keys.append_row(keys.row(i));
      kept_values.append_row(values.row(i));
    }
    const Matrix rows = projection_row_norms(projection, values.cols()), norm_errors(1, keys.rows());
    for (int64_t i = 0; i < keys.rows(); ++i) {
      for (int64_t k = 0; k < projection.cols(); ++k) {
        double x = 0;
        for (int64_t c = 0; c < values.cols(); ++c) x += values(i, c) * projection(c, k);
        norms(0, i) += std::abs(x);
      }
    }
    return perturbation_errors({query, keys, values, 1, kept, kept_keys, kept_values, norms, norm_errors,
                                rows, projection.cols()},
                               arithmetic)
        .front();
  }
};

// All values and W^O are 1; the keys are these logits.
Compressed flat(const std::vector<double>& logits, std::vector<int64_t> kept) {
  Compressed given{filled(1, 1, 1), Matrix(std::ssize(logits), 1), {}, filled(1, 1, 1), std::move(kept)};
  for (size_t j = 0; j < logits.size(); ++j) given.keys(j, 0) = logits[j];
  given.values = filled(given.keys.rows(), 1, 1);
  return given;
}

constexpr size_t kTokens = 4000;
constexpr double kFarBelow = -20;

std::vector<double> weights_of(Directed& round, const std::vector<double>& logits, double direction) {
  std::vector<double> weights;
  for (const double z : logits) weights.push_back(std::exp(z));
  const double below = round.towards(-direction).sum(weights);
  for (double& weight : weights) weight = round.towards(direction)(weight / below);
  return weights;
}

std::vector<int64_t> all_of(size_t count) {
  std::vector<int64_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(DirectedFigures, OfAKeptMassCountsWeightsAndTheirSum) {
  std::vector<double> logits(kTokens, kFarBelow);
  logits.front() = 0;
  const Compressed given = flat(logits, all_of(kTokens));
  const Arithmetic arithmetic = rounding_unit();
  Directed round(arithmetic);
  expect_tight(round.sum(weights_of(round, logits, 1)) - 1, given.errors(arithmetic).kept_mass, 1.1);
}

TEST(DirectedFigures, OfTheBoundCountsThePrintedForm) {
  // One of two entries is kept: theta = C - (2 - 1/Sigma) S.
  std::vector<double> logits(kTokens, kFarBelow);
  logits[0] = logits[1] = 0;
  const Compressed given = flat(logits, {0});
  const Arithmetic arithmetic = rounding_unit();
  Directed round(arithmetic);
  const std::vector<double> above = weights_of(round, logits, 1), below = weights_of(round, logits, -1);
  const double all = round.up().sum(above), kept = 1 / (1 + std::exp(kFarBelow) * (kTokens - 2) + 1);
  const double printed = all - (2 - 1 / below[0]) * kept;
  expect_tight(printed - 2 * (1 - kept), given.errors(arithmetic).bound, 1.3);
}

TEST(DirectedFigures, OfAPerturbationCountsBothOutputs) {
  // Nothing is evicted: the two outputs differ only by their roundings.
  std::vector<double> logits(kTokens, kFarBelow);
  logits.front() = 0;
  const Compressed given = flat(logits, all_of(kTokens));
  const Arithmetic arithmetic = rounding_unit();
  Directed round(arithmetic);
  const std::vector<double> above = weights_of(round, logits, 1), below = weights_of(round, logits, -1);
  const double mass = round.up().sum(above);
  std::vector<double> shares;
  for (const double weight : below) shares.push_back(weight / mass);
  const double output = round.up().sum(above), compressed = round.down().sum(shares);
  expect_tight(output - compressed, given.errors(arithmetic).perturbation, 1.3);
}

TEST(DirectedFigures, OfAPerturbationCountsTheProductWithTheProjection) {
  const int64_t dimensions = 2000;
  const Compressed given{
      Matrix(1, dimensions), Matrix(1, dimensions), led(1, dimensions, 1), led(dimensions, 1, 1), {0}};
  const Arithmetic arithmetic = rounding_unit();
  Directed round(arithmetic);
  const auto projected = [&] { return round.dot(given.values.row(0), given.projection.numbers()); };
  const double above = (round.up(), projected()), below = (round.down(), projected());
  expect_tight(above - below, given.errors(arithmetic).perturbation, 1.2);
}

TEST(DirectedFigures, OfAPerturbationCountsWhatIsStored) {
  Compressed given = flat({0, 0}, {1});
  given.values(0, 0) = -1;
  const double exact = 1;  // |0 - 1|
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.input = 0x1p-9;
  expect_tight(exact * std::pow(1 + arithmetic.input, 2) - exact, given.errors(arithmetic).perturbation, 2.1,
               "input");
  arithmetic = nothing_rounds();
  arithmetic.input_floor = 0x1p-10;
  expect_tight(std::pow(1 + arithmetic.input_floor, 2) - 1, given.errors(arithmetic).perturbation, 10,
               "floor");
  arithmetic = nothing_rounds();
  arithmetic.weights = 0x1p-9;
  const double output = arithmetic.weights, compressed = 1 - arithmetic.weights;  // exactly 0 and 1
  expect_tight(exact - (compressed - output), given.errors(arithmetic).perturbation, 1.1, "weights");
}

TEST(DirectedFigures, OfATotalCountsTheHeads) {
  const int64_t heads = 2000;
  const Matrix weights = filled(heads, 2, 0.5), none(heads, 2), norms = [&] {
    Matrix matrix = filled(heads, 2, 1e-9);
    matrix(0, 0) = matrix(0, 1) = 1;
    return matrix;
  }();
  const Arithmetic arithmetic = rounding_unit();
  const std::vector<int64_t> kept{1};
  std::vector<double> thetas(heads, 1e-9);
  thetas.front() = 1;
  const double exact = 1 + 1e-9 * static_cast<double>(heads - 1);
  expect_tight(Directed(arithmetic).sum(thetas) - exact,
               total_bound_error(weights, none, norms, none, kept, arithmetic), 1.1);
  expect_tight(Directed(arithmetic).sum(thetas) - exact, sum_rounding(heads, arithmetic) * exact, 1.001);
}

}  // namespace
}  // namespace kvbound::test::directed_score_test
