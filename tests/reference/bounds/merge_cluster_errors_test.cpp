#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/merging/merge_baselines.hpp>
#include <kvbound/reference/merging/nearest_key.hpp>
#include <kvbound/reference/merging/score_ema.hpp>
#include <kvbound/reference/merging/weighted_mean.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::merge_cluster_errors_test {
namespace {

using test::integer;
using test::Random;

// Somebody else's numbers: each of another's, off by no more than its error.
Matrix moved(const Matrix& numbers, const Matrix& errors, Random& random) {
  Matrix result = numbers;
  for (int64_t i = 0; i < numbers.rows(); ++i) {
    for (int64_t j = 0; j < numbers.cols(); ++j) {
      result(i, j) += errors(i, j) * (random.index(3) == 0 ? 1 : random.uniform(-1, 1));
    }
  }
  return result;
}

Matrix errors_of(const Matrix& numbers, double share, Random& random) {
  Matrix result = numbers;
  for (int64_t i = 0; i < numbers.rows(); ++i) {
    for (double& number : result.row(i)) number = share * random.uniform(0, 1) * std::abs(number);
  }
  return result;
}

// A cluster as two sides see it, one off by what is called the members' errors, the queries by their storage.
struct Case {
  ClusterMembers members, theirs;
  MemberErrors errors;
  Matrix queries, their_queries;
  std::vector<double> denominators, their_denominators, denominator_errors;
  Arithmetic arithmetic = double_precision();
};

Case any_case(double share) {
  Random random(static_cast<uint64_t>(*integer(0, 1 << 30)));
  const int64_t count = *integer(2, 6), heads = *integer(1, 4), head_dim = *integer(4, 9);
  const double spread = *integer(0, 1) == 0 ? 3 : 30;
  Case given;
  given.members.keys = random.matrix(count, head_dim);
  given.members.values = random.matrix(count, head_dim);
  given.members.log_scores = random.matrix(heads, count, spread);
  for (int64_t j = 0; j < count; ++j) given.members.votes.push_back(static_cast<double>(1 + random.index(5)));
  given.errors = {errors_of(given.members.keys, share, random),
                  errors_of(given.members.values, share, random),
                  errors_of(given.members.log_scores, share, random)};
  given.theirs = {moved(given.members.keys, given.errors.keys, random),
                  moved(given.members.values, given.errors.values, random), given.members.votes,
                  moved(given.members.log_scores, given.errors.log_scores, random)};
  given.queries = random.matrix(heads, head_dim);
  given.arithmetic.input = share;
  given.their_queries = moved(given.queries, errors_of(given.queries, share, random), random);
  for (int64_t h = 0; h < heads; ++h) {
    given.denominators.push_back(spread * random.uniform(0, 3));
    given.denominator_errors.push_back(share);
    given.their_denominators.push_back(given.denominators.back() + share * random.uniform(-1, 1));
  }
  return given;
}

void require_within(const std::vector<double>& mine, const std::vector<double>& theirs,
                    const std::vector<double>& bounds) {
  RC_ASSERT(bounds.size() == mine.size());
  for (size_t c = 0; c < mine.size(); ++c) RC_ASSERT(std::abs(mine[c] - theirs[c]) <= bounds[c]);
}

constexpr double kShares[] = {0, 1e-13, 1e-7, 1e-3};
constexpr double kScale = 0.25;

void require_bounded(const KeyRule& rule) {
  const Case given = any_case(kShares[*integer(0, 3)]);
  const MergedEntry mine =
      merge_cluster(MergeQueries(rule, given.queries, kScale, given.denominators), given.members);
  const MergedEntry theirs =
      merge_cluster(MergeQueries(rule, given.their_queries, kScale, given.their_denominators), given.theirs);
  const MergedEntryErrors errors =
      merge_cluster_errors({rule, given.queries, kScale, given.denominators, given.denominator_errors},
                           given.members, given.errors, given.arithmetic);
  RC_CLASSIFY(!std::isfinite(errors.key.front()), "no bound on the key");
  require_within(mine.key, theirs.key, errors.key);
  require_within(mine.value, theirs.value, errors.value);
  require_within(mine.log_scores, theirs.log_scores, errors.log_scores);
}

RC_GTEST_PROP(MergeClusterErrors, BoundWhatErrorsOfMembersDoToMinNormKeys, ()) {
  const double ranks[] = {0, 0.3, 0.6, 1};
  require_bounded(
      {MergedKey::min_norm, *integer(0, 1) == 0 ? MergeGqa::joint : MergeGqa::mean, ranks[*integer(0, 3)]});
}

RC_GTEST_PROP(MergeClusterErrors, BoundWhatErrorsOfMembersDoToZipKeys, ()) {
  require_bounded({MergedKey::zip, MergeGqa::mean, 0.3});
}

RC_GTEST_PROP(MergeClusterErrors, BoundWhatErrorsOfMembersDoToConvexKeys, ()) {
  require_bounded({MergedKey::convex, *integer(0, 1) == 0 ? MergeGqa::joint : MergeGqa::mean, 0.3});
}

RC_GTEST_PROP(MergeClusterErrors, BoundWhatErrorsOfMembersDoToTheBaselines, ()) {
  const Case given = any_case(kShares[*integer(0, 3)]);
  const auto require = [&](const auto& weights, const MergedEntryErrors& errors) {
    const std::vector<double> mine = weights(given.members.keys), theirs = weights(given.theirs.keys);
    require_within(weighted_mean(mine, given.members.keys), weighted_mean(theirs, given.theirs.keys),
                   errors.key);
    require_within(weighted_mean(mine, given.members.values), weighted_mean(theirs, given.theirs.values),
                   errors.value);
  };
  require(similarity_weights, similarity_mean_errors(given.members, given.errors, given.arithmetic));
  require(gaussian_weights, gaussian_mean_errors(given.members, given.errors, given.arithmetic));
}

RC_GTEST_PROP(CosineError, BoundsWhatErrorsOfKeysDoToTheirCosine, ()) {
  const Case given = any_case(kShares[*integer(0, 3)]);
  const auto cosine = [](const Matrix& keys) {
    Matrix pair(0, keys.cols());
    pair.append_row(keys.row(0));
    pair.append_row(keys.row(1));
    return nearest_key(0, pair, key_norms(pair), std::vector<int64_t>{0, 1}).cosine;
  };
  RC_ASSERT(std::abs(cosine(given.members.keys) - cosine(given.theirs.keys)) <=
            cosine_error(given.members.keys.row(0), given.errors.keys.row(0), given.members.keys.row(1),
                         given.errors.keys.row(1), given.arithmetic));
}

// In single precision, so that its rounding shows: an average in the linear domain.
RC_GTEST_PROP(ScoreEmaError, BoundsAnAverageInSinglePrecision, ()) {
  Random random(static_cast<uint64_t>(*integer(0, 1 << 30)));
  const int64_t updates = *integer(1, 60);
  const double emas[] = {0, 0.5, 0.9, 0.99};
  PredictedScores options;
  options.ema = emas[*integer(0, 3)];
  options.normalisation = *integer(0, 1) == 0 ? Normalisation::exact : Normalisation::paper;
  ScoreEma mine(options, 1);
  mine.append();
  const auto ema = static_cast<float>(options.ema);
  float sum = 0, weight = 0, largest = 0;
  Matrix score(1, 1);
  for (int64_t i = 0; i < updates; ++i) {
    score(0, 0) = static_cast<double>(static_cast<float>(random.uniform(-9, 3)));
    mine.observe(score);
    const auto own = static_cast<float>(score(0, 0));
    sum = ema * sum + (1 - ema) * std::exp(own);
    weight = ema * weight + (1 - ema);
    largest = std::max(largest, std::abs(own));
  }
  const int64_t tokens = updates + *integer(0, 100);
  if (options.normalisation == Normalisation::paper) {
    weight = 1 - std::pow(ema, static_cast<float>(tokens));
  }
  const auto theirs = static_cast<double>(std::log(sum / weight));
  RC_ASSERT(std::abs(theirs - mine.log_predicted(0, 0, tokens)) <=
            score_ema_error(updates, options.ema, static_cast<double>(largest), single_precision()));
}

TEST(MergeClusterErrors, AreSmallInDoublePrecision) {
  // Three keys, logits of a few nats: nothing is off by more than some hundred roundings.
  Random random(7);
  ClusterMembers members{random.matrix(3, 8), random.matrix(3, 8), {1, 2, 1}, random.matrix(2, 3, 2)};
  const MemberErrors exact{Matrix(3, 8), Matrix(3, 8), Matrix(2, 3)};
  const Matrix queries = random.matrix(2, 8);
  const std::vector<double> denominators{5, 6}, none{0, 0};
  for (const KeyRule& rule :
       {KeyRule{MergedKey::min_norm, MergeGqa::joint, 0.3}, KeyRule{MergedKey::min_norm, MergeGqa::mean, 0.3},
        KeyRule{MergedKey::zip, MergeGqa::mean, 0.3}, KeyRule{MergedKey::convex, MergeGqa::joint, 0.3}}) {
    const MergedEntryErrors errors =
        merge_cluster_errors({rule, queries, kScale, denominators, none}, members, exact, double_precision());
    for (const double error : errors.key) EXPECT_LT(error, 1e-11);
    for (const double error : errors.value) EXPECT_LT(error, 1e-13);
    for (const double error : errors.log_scores) EXPECT_LT(error, 1e-13);
  }
}

TEST(MergeClusterErrors, AreInfiniteWhereASingularValueIsAtTheLimit) {
  // Singular values 2 and 1: at rank=1/2 rounding decides whether the second one counts.
  ClusterMembers members{
      test::matrix({{1, 0}, {0, 1}}), test::matrix({{1, 0}, {0, 1}}), {1, 1}, test::matrix({{0, 1}, {1, 0}})};
  const MemberErrors exact{Matrix(2, 2), Matrix(2, 2), Matrix(2, 2)};
  const Matrix queries = test::matrix({{2, 0}, {0, 1}});
  const std::vector<double> denominators{5, 6}, none{0, 0};
  const auto key_error = [&](double rank) {
    return merge_cluster_errors(
               {{MergedKey::min_norm, MergeGqa::joint, rank}, queries, kScale, denominators, none}, members,
               exact, double_precision())
        .key.front();
  };
  EXPECT_FALSE(std::isfinite(key_error(0.5)));
  EXPECT_LT(key_error(0.49), 1e-11);
  EXPECT_LT(key_error(0.51), 1e-11);
}

}  // namespace
}  // namespace kvbound::reference::merge_cluster_errors_test
