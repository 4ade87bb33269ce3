// Rounding of one merge: bounds are attained by roundings that all go in the worst direction, hold for a
// single-precision merge of numbers stored in half precision, and are never so wide that they prove nothing.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/bounds/merge_rounding.hpp>
#include <kvbound/reference/core/float16.hpp>
#include <kvbound/reference/core/infinity.hpp>

#include "directed.hpp"
#include "single_precision.hpp"
#include "support/random_layer.hpp"

namespace kvbound::test::merge_rounding_test {
namespace {

using namespace reference;

Arithmetic rounding_unit() {
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.unit = 0x1p-24;
  return arithmetic;
}

constexpr Evaluation kEvaluations[] = {Evaluation::any_form, Evaluation::as_cluster_mean};

const std::vector<double> kOnly{1};  // the direction of a single column

TEST(UncertainWeights, CountTheSumsOfAMean) {
  const int64_t members = 2000;
  const Arithmetic arithmetic = rounding_unit();
  Directed round(arithmetic);
  std::vector<double> logits(members, -20), weights(logits.size(), std::exp(-20.0));
  logits.front() = 0;
  weights.front() = 1;
  const double below = round.down().sum(weights);
  for (double& weight : weights) weight = round.up()(round(weight / below) * 1);
  const Matrix rows = filled(members, 1, 1);
  for (const Evaluation evaluation : kEvaluations) {
    const UncertainWeights uncertain(logits, std::vector<double>(logits.size()), evaluation, arithmetic);
    expect_tight(round.sum(weights) - 1, uncertain.mean_errors(rows, {}).front(), 1.1);
    expect_tight(round.sum(weights) - 1, uncertain.error_along(kOnly, rows, {}, std::vector<double>(members)),
                 1.1);
  }
}

TEST(UncertainWeights, CountErrorsOfLogitsAndOfRows) {
  Matrix rows = filled(8, 1, 1);
  for (int64_t j = 1; j < 8; j += 2) rows(j, 0) = -1;
  const std::vector<double> logits(8), none(8), off(8, 1e-3);
  for (const Evaluation evaluation : kEvaluations) {
    const UncertainWeights moved(logits, off, evaluation, nothing_rounds());
    expect_tight(std::tanh(1e-3), moved.mean_errors(rows, {}).front(), 1.01, "logits");
    expect_tight(std::tanh(1e-3), moved.error_along(kOnly, rows, {}, none), 1.01, "logits");
    const UncertainWeights exact(logits, none, evaluation, nothing_rounds());
    expect_tight(0.125, exact.mean_errors(rows, filled(8, 1, 0.125)).front(), 1.0001, "rows");
    expect_tight(0.125, exact.error_along(kOnly, rows, filled(8, 1, 0.125), std::vector<double>(8, 0.125)),
                 1.0001, "rows");
  }
}

TEST(UncertainWeights, LeaveTheRangeOfTheRowsWhereNothingIsKnown) {
  Matrix rows = filled(2, 1, 1);
  rows(1, 0) = -1;
  const std::vector<double> logits{0, -700}, off{kInfinity, kInfinity};
  const UncertainWeights lost(logits, off, Evaluation::any_form, nothing_rounds());
  expect_tight(2, lost.mean_errors(rows, {}).front(), 1.0001, "all of the weight may be on either");
}

// Members with these scores.
ClusterMembers members_of(const std::vector<double>& scores) {
  const auto count = std::ssize(scores);
  ClusterMembers members{filled(count, 1, 1), filled(count, 1, 1), std::vector<double>(scores.size(), 1),
                         Matrix(1, count)};
  for (size_t j = 0; j < scores.size(); ++j) members.log_scores(0, j) = scores[j];
  return members;
}

TEST(ClusterRounding, CountsWhatErrorsOfScoresDoToTheirMeanAndDivergence) {
  const std::vector<double> scores{3, 0.5, -1, 2.5};
  const ClusterMembers members = members_of(scores);
  for (const double t : {1e-6, 1e-3, 0.1}) {
    const std::vector<double> off(scores.size(), t);
    const ClusterRounding rounding(members, scores, off, Evaluation::any_form, nothing_rounds());
    std::vector<double> apart = scores, upwards = scores, steeper = scores;
    for (size_t j = 0; j < scores.size(); ++j) {
      const double from_mean = scores[j] - rounding.mean().mean_log_score;
      apart[j] += std::copysign(t, from_mean);
      upwards[j] += t;
      steeper[j] += std::copysign(t, 1 + from_mean);  // d m / d x_j = w_j (1 + x_j - m)
    }
    const double divergence = cluster_mean(members, apart).divergence - rounding.mean().divergence;
    expect_tight(divergence, rounding.divergence_error(), t < 0.1 ? 1.05 : 2, "KL");
    const double mean = cluster_mean(members, steeper).mean_log_score - rounding.mean().mean_log_score;
    expect_tight(mean, rounding.mean_log_score_error(3 + t), t < 0.1 ? 1.5 : 2, "m");
    const double weight = cluster_mean(members, upwards).log_weight - rounding.mean().log_weight;
    expect_tight(weight, rounding.log_weight_error(), 1.001, "ln W");
  }
}

TEST(ClusterRounding, CountsExponentialsAndSums) {
  Arithmetic arithmetic = nothing_rounds();
  arithmetic.exponential = 0x1p-12;
  const std::vector<double> scores(64), none(64);
  const ClusterMembers members = members_of(scores);
  const ClusterRounding rounding(members, scores, none, Evaluation::any_form, arithmetic);
  Directed round(arithmetic);
  const double log_weight = round.log(round.sum(std::vector<double>(64, round.exp(0))));
  expect_tight(log_weight - std::log(64.0), rounding.log_weight_error(), 2.1);
  EXPECT_LE(log_weight - std::log(64.0), rounding.divergence_error());
  // Nearly equal scores have hardly any divergence, and evaluating it as group_mean does hardly rounds.
  const ClusterRounding own(members, scores, none, Evaluation::as_cluster_mean, reference_rounding());
  EXPECT_LT(own.divergence_rounding(0), 1e-13);
}

TEST(ClusterRounding, KnowsNothingOfScoresThatAreOffByTooMuch) {
  const std::vector<double> scores{1, 2}, off{0.5, 0};
  const ClusterRounding rounding(members_of(scores), scores, off, Evaluation::any_form, nothing_rounds());
  EXPECT_EQ(rounding.divergence_error(), kInfinity);
}

// Logits of a billion: their own rounding dominates.
TEST(EffectRounding, BoundsWhatRoundingOfLargeLogitsDoesToAChange) {
  constexpr double kLogit = 1e9;
  const Matrix query = filled(1, 1, 1);
  CacheEntries cache;
  cache.append(0, 2, filled(1, 1, kLogit).row(0), filled(1, 1, -1).row(0));
  cache.append(1, 1, filled(1, 1, kLogit).row(0), filled(1, 1, 1).row(0));
  ClusterMembers members{filled(2, 1, kLogit), filled(2, 1, 1), {1, 1}, {}};
  const std::vector<MergedCluster> clusters{{members, 0}};
  const EffectRounding rounding(query.row(0), 1, cache, clusters);
  const double off = logit_errors(query, cache.keys, 1, reference_rounding())(0, 0);
  // o over the members' and the other entry's values, all 1, minus o' over the merged entry's -1 with
  // two votes and the other's 1
  const auto change = [](double merged) {
    const double weight = 2 * std::exp(merged);
    return 1 - (1 - weight) / (1 + weight);
  };
  const EffectRounding::Query of_query = rounding.of_query();
  expect_tight(change(off) - change(-off), of_query.change, 60);
  expect_tight(std::expm1(2 * off), of_query.weights, 20);
  EXPECT_GE(rounding.weight_error(kLogit, 1, off), std::expm1(off + kLogit * 0x1p-53))
      << "the difference from ln D is rounded";
  EXPECT_LE(rounding.weight_error(kLogit, 1, off), 20 * off);
  EXPECT_EQ(rounding.terms(), 3);
}

// A cluster merged for one query, with keys and values that half precision holds exactly.
struct Case {
  ClusterMembers members, stored;
  MemberErrors errors;
  Matrix query;
};

Case half_precision_case(uint64_t seed) {
  Random random(seed);
  const int64_t count = 2 + random.index(4), dimensions = 16;
  Case given;
  given.query = filled(1, dimensions, 0);
  for (double& x : given.query.row(0)) x = single(random.normal());
  given.members = {
      random.matrix(count, dimensions), random.matrix(count, dimensions), {}, random.matrix(1, count, 2)};
  for (int64_t j = 0; j < count; ++j) given.members.votes.push_back(static_cast<double>(1 + random.index(4)));
  for (double& x : given.members.log_scores.row(0)) x = single(x);
  given.stored = given.members;
  given.errors = {Matrix(count, dimensions), Matrix(count, dimensions), filled(1, count, 0)};
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t c = 0; c < dimensions; ++c) {
      given.stored.keys(j, c) = from_float16(to_float16(given.members.keys(j, c)));
      given.stored.values(j, c) = from_float16(to_float16(given.members.values(j, c)));
      given.errors.keys(j, c) = 0x1p-11 * std::abs(given.members.keys(j, c)) + 0x1p-25;
      given.errors.values(j, c) = 0x1p-11 * std::abs(given.members.values(j, c)) + 0x1p-25;
    }
  }
  return given;
}

// KeepKV's merge for one query, entirely in single precision.
SingleMean merge_in_single(const Case& given, MergedKey rule, float scale) {
  SingleMean merged(given.stored, row_of(given.stored.log_scores.row(0)));
  const Row query = row_of(given.query.row(0));
  float norm = 0;
  for (const float x : query) norm += x * x;
  for (size_t c = 0; c < query.size(); ++c) {
    switch (rule) {
      case MergedKey::min_norm:
        merged.key[c] -= merged.divergence * query[c] / (scale * norm);
        break;
      case MergedKey::zip:
        merged.key[c] *= 1 - merged.divergence / merged.mean_log_score;
        break;
      case MergedKey::convex:
        break;
    }
  }
  return merged;
}

TEST(MergeClusterErrors, HoldInSinglePrecisionAndAreSeldomInfinite) {
  constexpr double kScale = 0.25;
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip, MergedKey::convex}) {
    int64_t infinite = 0, cases = 400;
    std::vector<double> ratios;
    for (int64_t seed = 0; seed < cases; ++seed) {
      const Case given = half_precision_case(static_cast<uint64_t>(seed));
      const KeyRule rule{key, MergeGqa::mean, 0.3};
      const MergedEntry exact = merge_cluster(MergeQueries(rule, given.query, kScale), given.members);
      const SingleMean merged = merge_in_single(given, key, kScale);
      const MergedEntryErrors errors = merge_cluster_errors({rule, given.query, kScale, {}, {}},
                                                            given.members, given.errors, single_precision());
      infinite += !(errors.key.front() < kInfinity);
      for (size_t c = 0; c < exact.key.size(); ++c) {
        const double key_off = std::abs(static_cast<double>(merged.key[c]) - exact.key[c]);
        const double value_off = std::abs(static_cast<double>(merged.value[c]) - exact.value[c]);
        ASSERT_LE(key_off, errors.key[c]) << "seed " << seed;
        ASSERT_LE(value_off, errors.value[c]) << "seed " << seed;
        ASSERT_LT(errors.value[c], 0.01) << "half precision stores three digits";
        if (key_off > 0 && errors.key[c] < kInfinity) ratios.push_back(errors.key[c] / key_off);
      }
    }
    std::ranges::sort(ratios);
    std::cout << "key " << static_cast<int>(key) << ": " << infinite << " of " << cases
              << " clusters without a bound; bound/error, median " << ratios.at(ratios.size() / 2) << "\n";
    EXPECT_LE(infinite, cases / 100);
    EXPECT_LT(ratios.at(ratios.size() / 2), 20) << "rounding is random, its bound is not";
  }
}

TEST(MergeClusterErrors, OfJointCorrectionsAreSeldomInfinite) {
  int64_t infinite = 0, cases = 200;
  for (int64_t seed = 0; seed < cases; ++seed) {
    Random random(static_cast<uint64_t>(seed));
    ClusterMembers members{random.matrix(3, 16), random.matrix(3, 16), {1, 2, 1}, random.matrix(4, 3, 2)};
    const MemberErrors errors{filled(3, 16, 0x1p-11), filled(3, 16, 0x1p-11), filled(4, 3, 1e-5)};
    const Matrix queries = random.matrix(4, 16);
    const std::vector<double> denominators(4, 5), off(4, 1e-5);
    const MergedEntryErrors found =
        merge_cluster_errors({{MergedKey::min_norm, MergeGqa::joint, 0.3}, queries, 0.25, denominators, off},
                             members, errors, single_precision());
    infinite += !(found.key.front() < 1);
  }
  std::cout << infinite << " of " << cases << " joint corrections without a bound below 1\n";
  EXPECT_LE(infinite, cases / 20);
}

TEST(CosineError, AttainsWhatKeysThatAreOffAndTheirSumsDo) {
  const std::vector<double> one{1, 0}, other{0, 1}, none{0, 0}, off{0, 1e-3}, other_off{1e-3, 0};
  const double attained = 1e-3 / std::sqrt(1 + 1e-6);
  expect_tight(attained, cosine_error(one, off, other, none, nothing_rounds()), 2.1);
  expect_tight(attained, cosine_error(one, none, other, other_off, nothing_rounds()), 2.1);
  Arithmetic arithmetic = rounding_unit();
  for (const int64_t dimensions : {2000, 1}) {
    if (dimensions == 1) arithmetic.tensor_sums = 0x1p-12;
    const Matrix key = led(1, dimensions, 1), exact(1, dimensions);
    Directed round(arithmetic);
    Arithmetic of_lengths = arithmetic;
    of_lengths.tensor_sums = 0;
    const double below = Directed(of_lengths).down().dot(key.row(0), key.row(0));
    const double norm = round(std::sqrt(below)), above = round.up().dot(key.row(0), key.row(0));
    expect_tight(round(above / (norm * norm)) - 1,
                 cosine_error(key.row(0), exact.row(0), key.row(0), exact.row(0), arithmetic), 1.1);
  }
}

TEST(ScoreEmaError, CountsTheUpdates) {
  // A first score of 0 and negligible ones after it: every update multiplies and adds.
  const double ema = 0.999;
  const int64_t updates = 1000;
  const Arithmetic arithmetic = rounding_unit();
  Directed round(arithmetic);
  double sum = 1 - ema, weight = 1 - ema, exact = weight;
  for (int64_t i = 1; i < updates; ++i) {
    sum = round.up()(round(ema * sum) + 0);
    weight = round.down()(round(ema * weight) + (1 - ema));
    exact = ema * exact + (1 - ema);
  }
  const double attained = std::log(sum / weight) - std::log((1 - ema) * std::pow(ema, updates - 1) / exact);
  expect_tight(attained, score_ema_error(updates, ema, 1, arithmetic), 6);
}

}  // namespace
}  // namespace kvbound::test::merge_rounding_test
