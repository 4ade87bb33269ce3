// Merges by hand: a cluster of two members, with weights 1/2 and 1/2 unless said otherwise.
#include <algorithm>

#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/merging.hpp>

namespace kvbound::exact::merging_test {
namespace {

using Cluster = std::vector<int64_t>;

testing::AssertionResult is(const Real& actual, const Real& expected) {
  if (abs(actual - expected) <= Real("1e-45")) return testing::AssertionSuccess();
  return testing::AssertionFailure() << actual.str(30) << ", expected " << expected.str(30);
}

testing::AssertionResult are(const Reals& actual, const Reals& expected) {
  if (actual.size() != expected.size()) return testing::AssertionFailure() << actual.size() << " numbers";
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!is(actual[i], expected[i])) return is(actual[i], expected[i]) << " at " << i;
  }
  return testing::AssertionSuccess();
}

const Real ln2 = log(Real(2)), ln3 = log(Real(3));

// p = 3, 1 and s = 1, 3: W = 6, P = 4, KL = 1/2 ln((1/2) / (3/4)) + 1/2 ln((1/2) / (1/4)).
const Entries kMembers{{{1, 0}, {3, 4}}, {{2}, {6}}, {3, 1}};
const Reals kScores{0, ln3};
const Real kDivergence = (2 * ln2 - ln3) / 2;

TEST(ExactClusterMean, WeighsMembersByVotesAndScores) {
  const ClusterMean mean(kMembers, kScores);
  EXPECT_TRUE(are(mean.weights, {0.5, 0.5}));
  EXPECT_EQ(mean.votes, 4);
  EXPECT_TRUE(is(mean.log_weight, ln2 + ln3));
  EXPECT_TRUE(is(mean.mean_score, ln3 / 2));
  EXPECT_TRUE(is(mean.target, ln3 - ln2));
  EXPECT_TRUE(is(mean.divergence, kDivergence));
  EXPECT_TRUE(are(mean.key, {2, 2}));
  EXPECT_TRUE(are(mean.value, {4}));
  EXPECT_EQ(ClusterMean(kMembers, {-7, -7}).divergence, 0) << "equal scores, exactly";
}

// Scores 0 and x, of shares 3/4 and 1/4: KL = 3/32 x^2 + 1/32 x^3 + ...
TEST(ExactClusterMean, KeepsTheDigitsOfATinyDivergence) {
  for (const char* distance : {"1e-16", "1e-24"}) {
    const Real x(distance), expected = (3 + x) * x * x / 32;
    EXPECT_LT(abs(ClusterMean(kMembers, {5, 5 + x}).divergence / expected - 1), Real("1e-20")) << distance;
  }
  const Real x("1e-16");
  EXPECT_LT(abs(ClusterMean(kMembers, {0, x}).divergence / ((3 + x) * x * x / 32) - 1), Real("1e-28"));
}

// No distance of two scores gives more, and one of those tried nearly as much.
TEST(DivergencePerRange, IsTheLargestOfTwoScores) {
  for (const int others : {1, 3, 999999}) {
    const Real largest = divergence_per_range(Real(1) / (1 + others));
    Real found = 0;
    for (Real distance = 0.125; distance <= 32; distance += 0.125) {
      const ClusterMean mean({{{0}, {0}}, {{0}, {0}}, {others, 1}}, {0, distance});
      EXPECT_LE(mean.divergence / distance, largest) << distance;
      found = std::max<Real>(found, mean.divergence / distance);
    }
    EXPECT_GT(found, largest - 0.001) << others;
  }
  EXPECT_LT(abs(divergence_per_range(0.5) - Real("0.16991712074595355")), Real("1e-15"));
}

// The bound covers scores that move to the ends of their bounds.
TEST(BoundedClusterMean, CoversWhatScoresWithinTheirBoundsGive) {
  const oracle::EntriesOf<oracle::Bounded> members{{{1, 0}, {3, 4}}, {{2}, {6}}, {3, 1}};
  for (const double score : {1.0, -2.0, 30.0}) {
    const Real error(0x1p-20);
    const oracle::ClusterMeanOf<oracle::Bounded> mean(members, {0, {score, error}});
    for (const Real& moved : {Real(score - error), Real(score + error)}) {
      const ClusterMean other(kMembers, {0, moved});
      EXPECT_GE(mean.divergence.bound, abs(other.divergence - mean.divergence.value)) << score;
      EXPECT_GE(mean.mean_score.bound, abs(other.mean_score - mean.mean_score.value)) << score;
      EXPECT_GE(mean.target.bound, abs(other.target - mean.target.value)) << score;
      EXPECT_GE(mean.key[1].bound, abs(other.key[1] - mean.key[1].value)) << score;
    }
    EXPECT_LE(mean.divergence.bound, 8 * error) << score;
  }
}

TEST(ExactMerge, MovesTheKeyAlongTheQueryUntilItMeetsItsTarget) {
  const ClusterMean mean(kMembers, kScores);
  const MergedEntry merged = min_norm_merge(mean, {1, 2});
  EXPECT_TRUE(are(merged.key, {2 - kDivergence / 5, 2 - 2 * kDivergence / 5}));
  EXPECT_TRUE(are(merged.value, {4}));
  EXPECT_EQ(merged.votes, 4);
}

TEST(ExactMerge, ScalesTheKeyByZip) {
  EXPECT_TRUE(
      are(zip_merge(ClusterMean(kMembers, kScores)).key, {4 * (ln3 - ln2) / ln3, 4 * (ln3 - ln2) / ln3}));
  EXPECT_TRUE(are(zip_merge(ClusterMean(kMembers, {0, 0})).key, {1.5, 1})) << "m = 0 and KL = 0: the mean";
}

TEST(ExactMerge, LeavesTheOthersAndPutsMergedEntriesLast) {
  const Entries cache{{{10}, {11}, {12}, {13}, {14}}, {{0}, {1}, {2}, {3}, {4}}, {5, 6, 7, 8, 9}};
  const Entries after = with_merged(cache, {{3, 0}, {1, 4}}, {{{20}, {30}, 40}, {{21}, {31}, 41}});
  EXPECT_EQ(after.keys, (Vectors{{12}, {20}, {21}}));
  EXPECT_EQ(after.values, (Vectors{{2}, {30}, {31}}));
  EXPECT_EQ(after.votes, (Reals{7, 40, 41}));
}

TEST(ExactMerge, GivesTheMergedEntryTheClustersPlace) {
  const Entries cache{{{0}, {0}, {0}}, {{1}, {2}, {8}}, {1, 1, 1}};
  for (const Cluster& cluster : {Cluster{0, 2}, Cluster{2, 0}}) {
    const Query after = merged_attention({5, 0, -5}, cache, cluster, 0, {{0}, {4}, 3});
    EXPECT_TRUE(are(after.attention, {0.25, 0.75})) << "votes 1 and 3";
    EXPECT_TRUE(are(after.output, {3.5}));
  }
}

// Two heads whose weights of the cluster are W / D = 4/8 and 4/4; v-_h = 5 and 3,
// k-_h = (2.5, 3) and (1.5, 1).
TEST(ExactJointMean, WeighsHeadsBySquaredAttention) {
  const Entries members{kMembers.keys, kMembers.values, {1, 1}};
  const std::vector<ClusterMean> heads{{members, {0, ln3}}, {members, {ln3, 0}}};
  const JointMean joint(heads, {{1, 0}, {0, 1}}, {3 * ln2, 2 * ln2});
  EXPECT_TRUE(are(joint.value, {Real(17) / 5})) << "(5/4 + 3) / (1/4 + 1)";
  EXPECT_EQ(joint.votes, 2);
  EXPECT_TRUE(are(joint.key, {2, 2}));
  const Real divergence = 3 * ln3 / 4 - ln2;
  EXPECT_TRUE(are(joint.missing, {0.5 - divergence, -1 - divergence}));
  EXPECT_TRUE(are(joint.merged(2).key, {2.5 - divergence, 1 - divergence}));
  EXPECT_TRUE(are(joint.merged(0).key, {2, 2}));
}

TEST(ExactSingularValues, DescendAndSolveAlongTheLargest) {
  const SingularValues values({{0, 0, 1}, {3, 0, 0}});
  EXPECT_TRUE(are(values.sigmas, {3, 1}));
  EXPECT_TRUE(are(values.solution({5, 6}, 1), {2, 0, 0}));
  EXPECT_TRUE(are(values.solution({5, 6}, 2), {2, 0, 5}));
  EXPECT_TRUE(are(SingularValues({{2, 0}, {1, 1}}).solution({4, 3}, 2), {2, 1}));
  EXPECT_TRUE(are(SingularValues({{1, 2}, {1, 2}}).sigmas, {sqrt(Real(10)), 0}));
}

TEST(ExactConvexWeights, DecreaseWithTheAngleAndTheDistance) {
  const Real e = exp(Real(1)), root = exp(Real(0.5));
  EXPECT_TRUE(are(similarity_weights(oracle::RowsOf<Real>{{2, 0}, {0, 1}}), {e / (e + 1), 1 / (e + 1)}));
  EXPECT_TRUE(are(similarity_weights(oracle::RowsOf<Real>{{2, 0}, {3, 0}}), {0.5, 0.5}));
  // Twice the variance is 2 / (2 - 1) times the squared distance.
  EXPECT_TRUE(are(gaussian_weights(oracle::RowsOf<Real>{{0}, {7}}), {root / (root + 1), 1 / (root + 1)}));
  EXPECT_TRUE(are(gaussian_weights(oracle::RowsOf<Real>{{7}, {7}}), {0.5, 0.5}));
}

}  // namespace
}  // namespace kvbound::exact::merging_test
