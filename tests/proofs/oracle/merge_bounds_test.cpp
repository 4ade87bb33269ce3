// Where rounding may decide, and how far it may move a solution.
#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/merge_bounds.hpp>

#include "support/random_layer.hpp"

namespace kvbound::oracle::merge_bounds_test {
namespace {

using test::matrix;
using Ranks = std::vector<size_t>;

TEST(BoundedInverse, HasEveryRankThatRoundingMayFind) {
  const BoundedInverse inverse(Rows{Row{4, 0}, Row{0, 1}});
  EXPECT_EQ(inverse.ranks(0.25), (Ranks{1, 2})) << "the second singular value is at the limit";
  EXPECT_EQ(inverse.ranks(0.2499), Ranks{2});
  EXPECT_EQ(inverse.ranks(0.2501), Ranks{1});
  const BoundedInverse uncertain(Rows{Row{4, 0}, Row{0, {1, 0.125}}});
  EXPECT_EQ(uncertain.ranks(0.24), (Ranks{1, 2}));
  EXPECT_EQ(uncertain.ranks(0.26), (Ranks{1, 2}));
  EXPECT_EQ(BoundedInverse(Rows{Row{0, 0}}).ranks(0.5), Ranks{0});
}

TEST(BoundedInverse, MovesAsItsRowsAndTargetsDo) {
  const Real error(0x1p-10);
  const Row by_rows = *BoundedInverse(Rows{Row{{1, error}}}).solution(Row{3}, 1);
  EXPECT_EQ(by_rows[0].value, 3);
  EXPECT_GE(by_rows[0].bound, 3 / (1 - error) - 3);
  EXPECT_LE(by_rows[0].bound, 6 * error);
  const Row by_targets = *BoundedInverse(Rows{Row{0.5}}).solution(Row{{3, error}}, 1);
  EXPECT_EQ(by_targets[0].value, 6);
  EXPECT_GE(by_targets[0].bound, 2 * error);
  EXPECT_LE(by_targets[0].bound, 2.01 * error);
}

// The kept direction turns by about the error over the gap between the singular values.
TEST(BoundedInverse, TurnsWithADroppedDirection) {
  const Real error(0x1p-20), gap(0x1p-6);
  const BoundedInverse inverse(Rows{Row{1 + 0x1p-6, {0, error}}, Row{{0, error}, 1}});
  const exact::SingularValues turned({{1 + gap, error}, {error, 1}});
  const Row solved = *inverse.solution(Row{1, 1}, 1);
  const Reals moved = turned.solution({1, 1}, 1);
  for (size_t c = 0; c < moved.size(); ++c) EXPECT_GE(solved[c].bound, abs(moved[c] - solved[c].value)) << c;
  EXPECT_LE(solved[1].bound, 16 * error / gap);
}

TEST(BoundedInverse, HasNoBoundWhereKeptAndDroppedDirectionsAreAlike) {
  EXPECT_FALSE(BoundedInverse(Rows{Row{2, 0}, Row{0, 2}}).solution(Row{1, 1}, 1));
  EXPECT_TRUE(BoundedInverse(Rows{Row{2, 0}, Row{0, 2}}).solution(Row{1, 1}, 2));
  EXPECT_FALSE(BoundedInverse(Rows{Row{{1, 0.3}}}).solution(Row{1}, 1)) << "it may be next to 0";
  EXPECT_EQ(BoundedInverse(Rows{Row{0, 0}}).solution(Row{1}, 0)->size(), 2u);
}

// The mean score vanishes: m = sum (w/W) ln s = 0 for scores x - c and -c, c = x / (1 + exp(-x)).
MergedCluster zip_of_vanishing_mean(const Real& error) {
  const Real x = 0.5, centre = x / (1 + exp(-x));
  const reference::ClusterMembers members{matrix({{1, 0}, {3, 4}}), matrix({{2}, {6}}), {1, 1}, Matrix(1, 2)};
  return merge_cluster({MergedKey::zip, MergeGqa::mean, 0}, matrix({{1, 2}}), 1, members,
                       {Row{{x - centre, error}, {-centre, error}}}, Row{0});
}

TEST(BoundedZip, HasNoKeyWhereRoundingDecidesWhetherItHasAScale) {
  const MergedCluster singular = zip_of_vanishing_mean(Real("1e-20"));
  EXPECT_TRUE(singular.singular);
  EXPECT_EQ(singular.keys.size(), 1u) << "that of minimum norm";
  EXPECT_TRUE(zip_of_vanishing_mean(Real("1e-10")).keys.empty());
}

}  // namespace
}  // namespace kvbound::oracle::merge_bounds_test
