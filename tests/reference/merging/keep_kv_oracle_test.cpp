// KeepKV's merge of a cluster against 50 digits, in every regime that is numerically delicate.
#include <algorithm>
#include <cmath>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/proofs/oracle/merge_bounds.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference::keep_kv_oracle_test {
namespace {

using oracle::Bounded;
using oracle::exactly;
using oracle::Real;
using oracle::Row;
using oracle::Rows;
using oracle::within;
using test::Random;

using Numbers = std::vector<double>;

constexpr KeyRule kMinNorm{MergedKey::min_norm, MergeGqa::mean, 0.3};
constexpr KeyRule kZip{MergedKey::zip, MergeGqa::mean, 0.3};
constexpr KeyRule kConvex{MergedKey::convex, MergeGqa::mean, 0.3};
constexpr KeyRule kJoint{MergedKey::min_norm, MergeGqa::joint, 0.3};
constexpr KeyRule kJointConvex{MergedKey::convex, MergeGqa::joint, 0.3};

// A cluster and the queries for which it is merged.
struct Case {
  std::string regime;
  ClusterMembers members;
  Matrix queries;  // [heads, head_dim]
  double scale = 1;
  Numbers log_denominators;
};

enum class Regime {
  free_scores,      // unrelated to the queries' logits
  current,          // scores are the queries' logits
  equal_scores,     // KL = 0
  nearly_equal,     // KL -> 0
  vanishing_mean,   // m -> 0
  huge_logits,      // +-1e4
  many_votes,       // up to 1e6
  parallel,         // parallel queries
  nearly_parallel,  // nearly parallel queries
  zero_query,       // one query is 0
  tiny_queries,     // of size 1e-200
  identical,        // identical members
  zero_keys,
  count,
};
constexpr const char* kRegimes[] = {
    "free scores",       "current scores",    "equal scores",     "nearly equal scores", "vanishing mean",
    "huge logits",       "many votes",        "parallel queries", "nearly parallel",     "zero query",
    "queries of 1e-200", "identical members", "zero keys"};

void set_row(Matrix& rows, int64_t index, VectorView row) { std::ranges::copy(row, rows.row(index).begin()); }

void make_queries(Regime regime, Random& random, Matrix& queries) {
  for (int64_t h = 1; h < queries.rows(); ++h) {
    if (regime != Regime::parallel && regime != Regime::nearly_parallel) break;
    const double factor = random.uniform(-2, 2);
    const double apart = regime == Regime::parallel ? 0 : std::ldexp(1, -static_cast<int>(random.index(40)));
    for (int64_t c = 0; c < queries.cols(); ++c)
      queries(h, c) = factor * queries(0, c) + apart * random.normal();
  }
  if (regime == Regime::zero_query) set_row(queries, random.index(queries.rows()), Numbers(queries.cols()));
  if (regime != Regime::tiny_queries) return;
  for (int64_t h = 0; h < queries.rows(); ++h) {
    for (double& number : queries.row(h)) number *= 1e-200;
  }
}

void make_scores(Regime regime, Random& random, Case& drawn) {
  Matrix& scores = drawn.members.log_scores;
  const bool current = regime == Regime::current || regime == Regime::parallel ||
                       regime == Regime::nearly_parallel || random.index(3) == 0;
  if (current) scores = attention_logits(drawn.queries, drawn.members.keys, drawn.scale);
  for (int64_t h = 0; h < scores.rows(); ++h) {
    const double first = scores(h, 0);
    for (double& score : scores.row(h)) {
      if (regime == Regime::equal_scores || regime == Regime::identical) score = first;
      if (regime == Regime::nearly_equal)
        score = first + std::ldexp(random.normal(), -static_cast<int>(random.index(50)));
      if (regime == Regime::huge_logits) score = random.index(2) == 0 ? 1e4 : -1e4 * random.uniform(0, 1);
    }
    if (regime != Regime::vanishing_mean) continue;
    const double middle = cluster_mean(drawn.members, scores.row(h)).mean_log_score;
    const double rest = random.index(2) == 0 ? 0 : std::ldexp(1, -static_cast<int>(random.index(60)));
    for (double& score : scores.row(h)) score -= middle - rest;
  }
}

Case draw(Regime regime, Random& random) {
  const int64_t heads = int64_t{1} << random.index(3), head_dim = 1 + random.index(6);
  const int64_t count = 2 + random.index(5);
  Case drawn{kRegimes[static_cast<size_t>(regime)],
             {random.matrix(count, head_dim, 1.5),
              random.matrix(count, head_dim),
              {},
              random.matrix(heads, count, 2)},
             random.matrix(heads, head_dim),
             1 / std::sqrt(static_cast<double>(head_dim)),
             {}};
  for (int64_t j = 0; j < count; ++j) {
    const double most = regime == Regime::many_votes && random.index(2) == 0 ? 1e6 : 5;
    drawn.members.votes.push_back(1 + std::floor(random.uniform(0, most)));
    if (regime == Regime::identical) {
      set_row(drawn.members.keys, j, drawn.members.keys.row(0));
      set_row(drawn.members.values, j, drawn.members.values.row(0));
    }
    if (regime == Regime::zero_keys && random.index(2) == 0) {
      set_row(drawn.members.keys, j, Numbers(head_dim));
    }
  }
  make_queries(regime, random, drawn.queries);
  make_scores(regime, random, drawn);
  for (int64_t h = 0; h < heads; ++h) drawn.log_denominators.push_back(random.uniform(-3, 9));
  return drawn;
}

// How many numbers were compared, and how many of their bounds were tight enough to prove something.
struct Tally {
  int compared = 0, sharp = 0, undecided = 0, singular = 0;
  void add(const Row& expected) {
    Real value = 0, bound = 0;
    for (const Bounded& number : expected) {
      value = std::max(value, Real(abs(number.value)));
      bound = std::max(bound, number.bound);
    }
    ++compared;
    sharp += bound <= Real(1e-9) * value;
  }
};

testing::AssertionResult all_near(VectorView actual, const Row& expected) {
  if (actual.size() != expected.size()) return testing::AssertionFailure() << actual.size() << " numbers";
  for (size_t i = 0; i < actual.size(); ++i) {
    if (auto result = within(actual[i], expected[i]); !result) return result << " at " << i;
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult meets_definition(const KeyRule& rule, const Case& drawn, Tally& tally) {
  const auto expected = oracle::merge_cluster(rule, drawn.queries, drawn.scale, drawn.members,
                                              exactly(drawn.members.log_scores.view()),
                                              exactly(VectorView(drawn.log_denominators)));
  const MergedEntry merged =
      merge_cluster(MergeQueries(rule, drawn.queries, drawn.scale, drawn.log_denominators), drawn.members);
  testing::AssertionResult result = all_near(merged.value, expected.value);
  if (result) result = all_near(merged.log_scores, expected.log_scores);
  if (result) result = within(merged.votes, expected.votes);
  if (!result) return result << " (value, scores or votes)";
  if (expected.keys.size() != 1) {
    ++tally.undecided;
    return result;
  }
  tally.add(expected.keys.front());
  tally.singular += expected.singular;
  if (merged.zip.singular != expected.singular) return testing::AssertionFailure() << "singular";
  result = within(merged.zip.scale, expected.zip_scale);
  if (result) result = all_near(merged.key, expected.keys.front());
  return result << " (key or scale)";
}

testing::AssertionResult mean_meets_definition(const ClusterMembers& members, VectorView scores) {
  const ClusterMean mean = cluster_mean(members, scores);
  const oracle::ClusterMeanOf<Bounded> expected(
      {exactly(members.keys.view()), exactly(members.values.view()), exactly(VectorView(members.votes))},
      exactly(scores));
  testing::AssertionResult result = within(mean.divergence, expected.divergence);
  if (result) result = within(mean.log_weight, expected.log_weight);
  if (result) result = within(mean.mean_log_score, expected.mean_score);
  if (result) result = all_near(mean.weights, expected.weights);
  if (result) result = all_near(mean.key, expected.key);
  if (result) result = all_near(mean.value, expected.value);
  if (result && mean.divergence < 0) return testing::AssertionFailure() << "a negative divergence";
  return result;
}

const KeyRule kRules[] = {kMinNorm,
                          kZip,
                          kConvex,
                          kJoint,
                          kJointConvex,
                          {MergedKey::min_norm, MergeGqa::joint, 0},
                          {MergedKey::min_norm, MergeGqa::joint, 1}};

TEST(MergeClusterOracle, IsMetInEveryRegimeByEveryRule) {
  for (int which = 0; which < static_cast<int>(Regime::count); ++which) {
    Random random(static_cast<uint64_t>(100 + which));
    Tally tally;
    for (int drawing = 0; drawing < 40; ++drawing) {
      const Case drawn = draw(static_cast<Regime>(which), random);
      for (int64_t h = 0; h < drawn.queries.rows(); ++h) {
        EXPECT_TRUE(mean_meets_definition(drawn.members, drawn.members.log_scores.row(h)))
            << drawn.regime << ", drawing " << drawing;
      }
      for (const KeyRule& rule : kRules) {
        EXPECT_TRUE(meets_definition(rule, drawn, tally))
            << drawn.regime << ", drawing " << drawing << ", key " << static_cast<int>(rule.key) << ", gqa "
            << static_cast<int>(rule.gqa) << ", rank " << rule.rank;
      }
    }
    EXPECT_GE(tally.singular, static_cast<Regime>(which) == Regime::vanishing_mean ? 1 : 0);
    RecordProperty(kRegimes[which], std::to_string(tally.sharp) + " of " + std::to_string(tally.compared) +
                                        " sharp, " + std::to_string(tally.undecided) + " undecided");
    EXPECT_GE(tally.sharp, 200) << kRegimes[which];
  }
}

// ---- no loss

// The merged key's logit is ln(W / P) for scores that are the query's own logits, up to the error bound of
// the key times the query.
testing::AssertionResult is_lossless(const KeyRule& rule, const Case& drawn) {
  const MergedEntry merged = merge_cluster(MergeQueries(rule, drawn.queries, drawn.scale), drawn.members);
  const Rows logits = oracle::logits(drawn.queries, drawn.members.keys, drawn.scale);
  const auto expected = oracle::merge_cluster(rule, drawn.queries, drawn.scale, drawn.members, logits, {});
  if (expected.keys.size() != 1 || expected.singular != merged.zip.singular) {
    return testing::AssertionFailure() << "nothing can be said";
  }
  Real logit = 0, exact = 0, bound = 0, terms = 0;
  for (size_t c = 0; c < merged.key.size(); ++c) {
    const Real query = Real(drawn.scale) * drawn.queries.row(0)[c];
    logit += query * merged.key[c];
    exact += query * expected.keys.front()[c].value;
    bound += abs(query) * expected.keys.front()[c].bound;
    terms += abs(query * expected.keys.front()[c].value);
  }
  const Bounded target = oracle::log_mean_score(exactly(VectorView(drawn.members.votes)), logits.front());
  // `bound` is that of roundings to 16 digits, grown by cancellation near m = 0. The definition is rounded to
  // 50 digits, and grows alike: it is off by about 1e-34 of `bound`.
  if (abs(exact - target.value) > Real("1e-40") * (1 + terms) + Real("1e-32") * bound) {
    return testing::AssertionFailure() << "the definition itself gives " << exact << " for " << target.value;
  }
  if (abs(logit - exact) <= bound) return testing::AssertionSuccess();
  return testing::AssertionFailure() << logit << " is not within " << bound << " of " << exact;
}

Case draw_lossless(Random& random) {
  const Regime regimes[] = {Regime::current, Regime::many_votes, Regime::identical, Regime::zero_keys,
                            Regime::tiny_queries};
  Case drawn = draw(regimes[random.index(5)], random);
  drawn.queries = random.matrix(1, drawn.queries.cols(), random.index(2) == 0 ? 1 : 30);
  if (drawn.regime == "queries of 1e-200") {
    for (double& number : drawn.queries.row(0)) number *= 1e-200;
  }
  drawn.members.log_scores = attention_logits(drawn.queries, drawn.members.keys, drawn.scale);
  return drawn;
}

RC_GTEST_PROP(MergeClusterProperty, ByMinimumNormGivesTheBuildingQueryTheClustersLogit, ()) {
  Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const Case drawn = draw_lossless(random);
  RC_CLASSIFY(true, drawn.regime);
  if (const auto result = is_lossless(kMinNorm, drawn); !result) RC_FAIL(std::string(result.message()));
}

RC_GTEST_PROP(MergeClusterProperty, ByZipGivesTheBuildingQueryTheClustersLogit, ()) {
  Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  Case drawn = draw_lossless(random);
  RC_PRE(drawn.regime != "queries of 1e-200");  // m and KL are mere rounding errors
  RC_CLASSIFY(true, drawn.regime);
  const auto expected =
      oracle::merge_cluster(kZip, drawn.queries, drawn.scale, drawn.members,
                            oracle::logits(drawn.queries, drawn.members.keys, drawn.scale), {});
  RC_PRE(expected.keys.size() == 1);
  if (const auto result = is_lossless(kZip, drawn); !result) RC_FAIL(std::string(result.message()));
}

// Logits 0 and -28: the mean is 11 digits smaller than the terms of the sums that it comes from.
TEST(MergeClusterOracle, MeetsZipsDefinitionWhereTheMeanScoreNearlyVanishes) {
  Random random(1019195267);
  EXPECT_TRUE(is_lossless(kZip, draw_lossless(random)));
}

}  // namespace
}  // namespace kvbound::reference::keep_kv_oracle_test
