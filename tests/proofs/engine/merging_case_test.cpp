// Instances as caches whose entries merge, and what merges change for a later query.
#include <gtest/gtest.h>

#include <kvbound/proofs/engine/draw_instance.hpp>
#include <kvbound/proofs/engine/merge_prediction.hpp>

#include "support/random_layer.hpp"

namespace kvbound::proofs::merging_case_test {
namespace {

using exact::Real;
using exact::Reals;
using test::matrix;
using Positions = std::vector<int64_t>;

testing::AssertionResult is(const Real& actual, const Real& expected) {
  if (abs(actual - expected) <= Real("1e-12")) return testing::AssertionSuccess();
  return testing::AssertionFailure() << actual.str(20) << ", expected " << expected.str(20);
}

// One query head with query vectors that are unit vectors, and values 1, 2 and 10.
Instance three_tokens(const Matrix& logits, Positions kept, std::vector<double> votes) {
  Instance instance;
  instance.logits = logits;
  instance.values = matrix({{1}, {2}, {10}});
  instance.output_projection = matrix({{-2}});
  instance.stage_one = instance.kept = std::move(kept);
  instance.votes = std::move(votes);
  instance.query_vectors = Matrix(logits.rows(), logits.rows());
  for (int64_t r = 0; r < logits.rows(); ++r) instance.query_vectors(r, r) = 1;
  require_valid(instance);
  return instance;
}

TEST(Clusters, HaveTheEvictedEntriesAfterTheKeptOneAndTheFirstAlsoThoseBefore) {
  Instance instance;
  instance.logits = Matrix(1, 7);
  instance.kept = {2, 4, 6};
  EXPECT_EQ(clusters_of(instance), (std::vector<Cluster>{{2, 0, 1, 3}, {4, 5}})) << "6 is alone";
  instance.kept = {0, 1, 2, 3, 4, 5, 6};
  EXPECT_TRUE(clusters_of(instance).empty());
}

TEST(MergingCases, HaveTheInstancesLogits) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Instance instance = instances(kMergingSizes)(rc::Random(seed), rc::kNominalSize).value();
    const MergingCase merging(instance);
    for (int64_t h = 0; h < instance.query_heads; ++h) {
      for (int64_t i = 0; i < instance.queries(); ++i) {
        const Reals logits = merging.logits(h, i);
        for (int64_t j = 0; j < instance.tokens(); ++j) {
          const double expected = instance.logits(h * instance.queries() + i, j);
          ASSERT_LT(abs(logits[j] - expected), 1e-6) << "seed " << seed;  // keys are rounded to doubles
        }
        if (i != 0) continue;
        ASSERT_EQ(merging.heads[h].predicted, logits);
      }
    }
  }
}

TEST(MergingCases, CountVotesInTheDenominator) {
  const MergingCase merging(three_tokens(matrix({{0, 0, 0}}), {0}, {1, 2, 5}));
  EXPECT_TRUE(is(merging.log_denominator(0), log(Real(8))));
  EXPECT_EQ(merging.mean(0, {0, 2}).votes, 6);
}

// The cluster {0, 1}, predicted by the first query's scores 1 and 1, has scores 1 and
// e^-1/2 for the second one.
TEST(Merging, ChangesALaterQuerysOutput) {
  const MergingCase merging(three_tokens(matrix({{0, 0, 0}, {0, -0.5, 0}}), {0, 2}, {1, 1, 1}));
  const Merges merges(merging, 0, {{0, 1}}, convex_merge);
  const QueryEffect effect(merging, 0, merges, 1);
  const Real half = exp(Real(-0.5)), quarter = exp(Real(-0.25));
  EXPECT_TRUE(is(effect.members_epsilon(), exp(Real(0.5)) - 1)) << "1 - s^/s, not 1 - s/s^";
  EXPECT_TRUE(is(effect.share(0), 2 * quarter / (1 + 2 * quarter))) << "two votes of the mean key";
  EXPECT_TRUE(is(effect.merged_share(), effect.share(0)));
  const Real before = (1 + 2 * half + 10) / (2 + half), after = (10 + 2 * quarter * 1.5) / (1 + 2 * quarter);
  EXPECT_TRUE(is(effect.change(Space::head)[0], after - before));
  EXPECT_TRUE(is(effect.change(Space::projected)[0], -2 * (after - before)));
  EXPECT_TRUE(is(effect.spread(Space::head, exact::Norm::l2), 9)) << "from a member to any entry";
}

// The same case: u = e^-1/4 / (1, e^-1/2), and 1 for the entry that did not merge.
TEST(Merging, ReweightsTheOriginalEntries) {
  const MergingCase merging(three_tokens(matrix({{0, 0, 0}, {0, -0.5, 0}}), {0, 2}, {1, 1, 1}));
  const Merges merges(merging, 0, {{0, 1}}, convex_merge);
  const QueryEffect effect(merging, 0, merges, 1);
  const Real half = exp(Real(-0.5)), quarter = exp(Real(-0.25)), whole = 1 + 2 * quarter;
  const exact::Reals reweighted = effect.reweighted();
  EXPECT_TRUE(is(reweighted[0], quarter / whole));
  EXPECT_TRUE(is(reweighted[1], quarter / whole));
  EXPECT_TRUE(is(reweighted[2], 1 / whole));
  EXPECT_TRUE(is(effect.moved_attention(), 1 / (2 + half) - quarter / whole)) << "entry 0 alone loses";
}

// The members are predicted exactly, but the later query sees the mean key:
// m = 6 / (1 + e^-6), z* = ln((1 + e^6) / 2).
TEST(Merging, CountsTheMergedEntrysErrorToo) {
  const MergingCase merging(three_tokens(matrix({{0, 6, 0}, {0, 6, 0}}), {0, 2}, {1, 1, 1}));
  const Merges merges(merging, 0, {{0, 1}}, exact::min_norm_merge);
  const QueryEffect effect(merging, 0, merges, 1);
  EXPECT_TRUE(is(effect.members_epsilon(), 0));
  const Real mean = 6 / (1 + exp(Real(-6))), target = log((1 + exp(Real(6))) / 2);
  EXPECT_TRUE(is(effect.epsilon(), 1 - exp(target - mean)));
}

TEST(PrintedFactor, IsThatOfThePaper) {
  EXPECT_EQ(printed_factor(0), 0);
  EXPECT_EQ(printed_factor(0.5), 6) << "2 1/2 3/2 / (1/4)";
}

}  // namespace
}  // namespace kvbound::proofs::merging_case_test
