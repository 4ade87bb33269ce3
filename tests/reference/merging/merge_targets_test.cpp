#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/proofs/oracle/bounded.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>

#include "support/random_layer.hpp"
#include "support/session_cases.hpp"

namespace kvbound::reference::merge_targets_test {
namespace {

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

using oracle::Real;
using test::matrix;
using test::Random;

using Numbers = std::vector<double>;
using Positions = std::vector<int64_t>;

const SimilarTarget kAll{std::nullopt}, kUsual{Decimal{8, 1}}, kNone{Decimal{1, 0}};

// {staying position: the positions merged into it}, which tests can compare.
std::map<int64_t, Positions> members(const MergeTargets& targets) {
  std::map<int64_t, Positions> result;
  int64_t last = -1;
  for (const MergeCluster& cluster : targets.clusters) {
    EXPECT_LT(last, cluster.into) << "groups ascend";
    EXPECT_TRUE(std::ranges::is_sorted(cluster.from));
    EXPECT_FALSE(cluster.from.empty());
    result[last = cluster.into] = cluster.from;
  }
  EXPECT_EQ(result.size(), targets.clusters.size());
  return result;
}
using Clusters = std::map<int64_t, Positions>;

// Unit vectors at these angles in degrees.
Matrix at_degrees(const Numbers& degrees) {
  Matrix keys;
  for (const double degree : degrees) {
    const double angle = degree * std::acos(-1) / 180;
    keys.append_row(Numbers{std::cos(angle), std::sin(angle)});
  }
  return keys;
}

TEST(IsSimilar, IsAboveTheThresholdAndNotAtIt) {
  EXPECT_FALSE(is_similar(0.8, kUsual));
  EXPECT_TRUE(is_similar(std::nextafter(0.8, 1), kUsual));
  EXPECT_FALSE(is_similar(1, kNone));
  EXPECT_TRUE(is_similar(-1, kAll));
  EXPECT_FALSE(is_similar(0, SimilarTarget{Decimal{0, 0}}));
}

TEST(EvictFirst, SendsEachToTheMostSimilarThatStays) {
  const Matrix keys = at_degrees({0, 90, 10, 80, 50, 180});
  const MergeTargets targets = evict_first(keys, {0, 1}, kAll);
  EXPECT_EQ(targets.kept, (Positions{0, 1}));
  EXPECT_EQ(members(targets), (Clusters{{0, {2}}, {1, {3, 4, 5}}}));
}

TEST(EvictFirst, DropsThoseWhoAreLikeNoOne) {
  // cos 36 = 0.809 is above 0.8, cos 37 = 0.7986 is not.
  const Matrix keys = at_degrees({0, 36, 37, -20});
  EXPECT_EQ(members(evict_first(keys, {0}, kUsual)), (Clusters{{0, {1, 3}}}));
  EXPECT_EQ(members(evict_first(keys, {0}, SimilarTarget{Decimal{79, 2}})), (Clusters{{0, {1, 2, 3}}}));
}

TEST(EvictFirst, BreaksTiesBySmallerPosition) {
  const Matrix keys = matrix({{5, 0}, {1, 1}, {1, 0}, {2, 0}, {0, 1}, {0, 7}});
  EXPECT_EQ(members(evict_first(keys, {0, 3, 5}, kAll)), (Clusters{{0, {1, 2}}, {5, {4}}}))
      << "1 is as like 0 and 3 as 5; 2 is 0's and 3's equal";
}

TEST(EvictFirst, TakesAZeroKeyForLikeNobody) {
  const Matrix keys = matrix({{-1, 0}, {0, 0}, {1, 0}, {0, 0}});
  // Cosines with a zero key are 0: more than -1, less than 1.
  EXPECT_EQ(members(evict_first(keys, {0, 1}, kAll)), (Clusters{{0, {3}}, {1, {2}}}))
      << "3 is 0 to all: the smaller position";
  EXPECT_EQ(members(evict_first(keys, {0, 1}, kUsual)), Clusters());
}

TEST(EvictFirst, MergesNothingAtAThresholdOfOne) {
  const Matrix keys = matrix({{1, 2}, {1, 2}, {2, 4}, {1.0 / 3, 2.0 / 3}});
  EXPECT_EQ(members(evict_first(keys, {0}, kNone)), Clusters());
  EXPECT_EQ(members(evict_first(keys, {0}, SimilarTarget{Decimal{999999, 6}})), (Clusters{{0, {1, 2, 3}}}));
}

TEST(EvictFirst, HasNothingToDoIfAllStay) {
  const MergeTargets targets = evict_first(at_degrees({0, 1, 2}), {0, 1, 2}, kAll);
  EXPECT_EQ(targets.kept, (Positions{0, 1, 2}));
  EXPECT_TRUE(targets.clusters.empty());
}

TEST(MergeFirst, SendsCandidatesToTheirBettersAndFollowsTheChain) {
  // Scores ascend: 0 merges into 1 and 1 into 2, each 10 degrees away; 3 is far from all.
  const Matrix keys = at_degrees({0, 10, 20, 120});
  const MergeTargets targets = merge_first(keys, Numbers{1, 2, 3, 4}, {}, 2, kUsual);
  EXPECT_EQ(targets.kept, (Positions{2, 3}));
  EXPECT_EQ(members(targets), (Clusters{{2, {0, 1}}}));
}

TEST(MergeFirst, RanksRootsByTheSumOfTheirMembersScores) {
  // 0 and 1 merge into 2, with a total score of 6; 3 alone has 5. With room for one entry the chain stays,
  // though 5 is the largest single score.
  const Matrix keys = at_degrees({0, 10, 20, 120});
  const MergeTargets targets = merge_first(keys, Numbers{1, 2, 3, 5}, {}, 1, kUsual);
  EXPECT_EQ(targets.kept, Positions{2});
  EXPECT_EQ(members(targets), (Clusters{{2, {0, 1}}}));
  // With a score of 6.5 entry 3 stays, and the chain is dropped with all its members.
  const MergeTargets other = merge_first(keys, Numbers{1, 2, 3, 6.5}, {}, 1, kUsual);
  EXPECT_EQ(other.kept, Positions{3});
  EXPECT_EQ(members(other), Clusters());
}

TEST(MergeFirst, BreaksTiesOfSumsBySmallerPosition) {
  const Matrix keys = at_degrees({0, 60, 120, 180});
  EXPECT_EQ(merge_first(keys, Numbers{2, 2, 2, 2}, {}, 2, kUsual).kept, (Positions{0, 1}));
  EXPECT_EQ(merge_first(keys, Numbers{1, 2, 2, 1}, {}, 3, kUsual).kept, (Positions{0, 1, 2}));
}

TEST(MergeFirst, NeedsAStrictlyHigherScore) {
  // Equal keys and equal scores: no candidate has a better one to merge into.
  const Matrix keys = at_degrees({0, 0, 0});
  EXPECT_EQ(members(merge_first(keys, Numbers{1, 1, 1}, {}, 3, kAll)), Clusters());
  EXPECT_EQ(members(merge_first(keys, Numbers{1, std::nextafter(1, 2), 1}, {}, 3, kAll)),
            (Clusters{{1, {0, 2}}}));
}

TEST(MergeFirst, SendsToTheMostSimilarBetterAndNotToTheBest) {
  // Better than 0 are 1 at 30 degrees and 2 at 10 degrees: 0 merges into 2. At equal angles on both sides
  // the smaller position wins.
  EXPECT_EQ(members(merge_first(at_degrees({0, 30, 10}), Numbers{1, 9, 2}, {}, 3, kUsual)),
            (Clusters{{1, {0, 2}}}))
      << "and from there to 1, at 20 degrees";
  const Matrix keys = matrix({{1, 0}, {1, 1}, {1, -1}});
  EXPECT_EQ(members(merge_first(keys, Numbers{1, 2, 2}, {}, 3, SimilarTarget{Decimal{5, 1}})),
            (Clusters{{1, {0}}}));
}

TEST(MergeFirst, KeepsAllRootsIfThereAreFewerThanPlaces) {
  const Matrix keys = at_degrees({0, 1, 2, 90, 91});
  const MergeTargets targets = merge_first(keys, Numbers{1, 2, 3, 4, 5}, {}, 4, kUsual);
  EXPECT_EQ(targets.kept, (Positions{2, 4})) << "two roots for four places";
  EXPECT_EQ(members(targets), (Clusters{{2, {0, 1}}, {4, {3}}}));
}

TEST(MergeFirst, LeavesThoseAlwaysKeptOutOfIt) {
  // Positions 0 and 4 are always kept; candidate 1 has the same key, but candidates do not merge
  // into always-kept entries.
  const Matrix keys = at_degrees({0, 0, 100, 200, 0});
  const MergeTargets targets = merge_first(keys, Numbers{1, 2, 3}, Positions{0, 4}, 2, kUsual);
  EXPECT_EQ(targets.kept, (Positions{0, 2, 3, 4}));
  EXPECT_EQ(members(targets), Clusters());
}

TEST(MergeFirst, WithoutRoomDropsAllCandidates) {
  const MergeTargets targets = merge_first(at_degrees({0, 1, 2}), Numbers{1, 2}, Positions{0}, 0, kAll);
  EXPECT_EQ(targets.kept, Positions{0});
  EXPECT_EQ(members(targets), Clusters());
}

TEST(MergeFirst, TakesAZeroKeyForLikeNobody) {
  const Matrix keys = matrix({{0, 0}, {1, 0}, {-1, 0}});
  EXPECT_EQ(members(merge_first(keys, Numbers{1, 2, 3}, {}, 3, kUsual)), Clusters());
  // Without a threshold 0's cosine of 0 is the same with both better candidates; the only one better
  // than 1 has the opposite key.
  EXPECT_EQ(members(merge_first(keys, Numbers{1, 2, 3}, {}, 3, kAll)), (Clusters{{2, {0, 1}}}));
}

TEST(MergeFirst, OfNoCandidatesKeepsThoseAlwaysKept) {
  EXPECT_EQ(merge_first(at_degrees({0, 1}), Numbers{}, Positions{0, 1}, 0, kAll).kept, (Positions{0, 1}));
}

// ---- against the definition, one candidate at a time

// Integer keys: scalar products and squared norms are exact, and cosines are compared as exact fractions.
struct IntegerKeys {
  Matrix keys;
  // sign(a . b) (a . b)^2 / |b|^2, which orders others b by their cosine with a; 0 for a zero key.
  Real order(int64_t a, int64_t b) const {
    Real product = 0, square = 0;
    for (int64_t c = 0; c < keys.cols(); ++c) {
      product += Real(keys(a, c)) * keys(b, c);
      square += Real(keys(b, c)) * keys(b, c);
    }
    return square == 0 ? Real(0) : Real(product * abs(product) / square);
  }
  // Whether cos(a, b) exceeds a threshold >= 0.
  bool similar(int64_t a, int64_t b, const SimilarTarget& target) const {
    if (!target.threshold) return true;
    const Real threshold =
        Real(target.threshold->digits) / boost::multiprecision::pow(Real(10), target.threshold->places);
    Real square = 0;
    for (int64_t c = 0; c < keys.cols(); ++c) square += Real(keys(a, c)) * keys(a, c);
    return square > 0 && order(a, b) > threshold * threshold * square;
  }
};

int64_t nearest(const IntegerKeys& keys, int64_t from, const Positions& to) {
  int64_t best = -1;
  for (const int64_t other : to) {
    if (best < 0 || keys.order(from, other) > keys.order(from, best)) best = other;
  }
  return best;
}

IntegerKeys drawn_keys(Random& random, int64_t count) {
  // Few directions, so that cosines tie: 0, 1 and sqrt(1/2) up to their signs. Their sums are not rounded,
  // and multiples by powers of two have the same bits.
  constexpr double kDirections[][2] = {{1, 0}, {0, 1}, {1, 1}, {-1, 0}, {0, -1}, {-1, -1}, {0, 0}};
  IntegerKeys result{Matrix(count, 2)};
  for (int64_t i = 0; i < count; ++i) {
    const double* const direction = kDirections[random.index(7)];
    const double factor = std::ldexp(1, static_cast<int>(random.index(3)));
    for (int64_t c = 0; c < 2; ++c) result.keys(i, c) = factor * direction[c];
  }
  return result;
}

SimilarTarget drawn_target() {
  return *rc::gen::element(kAll, kUsual, SimilarTarget{Decimal{5, 1}}, SimilarTarget{Decimal{95, 2}});
}

RC_GTEST_PROP(EvictFirstProperty, MeetsItsDefinition, ()) {
  Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const int64_t count = *test::integer(1, 12);
  const Positions kept = random.subset(count, *test::integer(1, count));
  const SimilarTarget target = drawn_target();
  const IntegerKeys keys = drawn_keys(random, count);
  Clusters expected;
  for (int64_t i = 0; i < count; ++i) {
    if (std::ranges::find(kept, i) != kept.end()) continue;
    const int64_t into = nearest(keys, i, kept);
    if (keys.similar(i, into, target)) expected[into].push_back(i);
  }
  RC_CLASSIFY(!expected.empty(), "some merge");
  const MergeTargets targets = evict_first(keys.keys, kept, target);
  RC_ASSERT(targets.kept == kept);
  RC_ASSERT(members(targets) == expected);
}

RC_GTEST_PROP(MergeFirstProperty, MeetsItsDefinition, ()) {
  Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const int64_t first = *test::integer(0, 2), candidates = *test::integer(1, 10), last = *test::integer(0, 2);
  const int64_t k = *test::integer(0, candidates);
  const SimilarTarget target = drawn_target();
  const IntegerKeys keys = drawn_keys(random, first + candidates + last);
  Numbers scores;  // dyadic: their sums are exact
  for (int64_t i = 0; i < candidates; ++i) scores.push_back(static_cast<double>(1 + random.index(8)) / 8);
  const auto score = [&](int64_t i) { return scores[i - first]; };

  std::map<int64_t, int64_t> root;
  std::map<int64_t, double> sums;
  for (int64_t i = first; i < first + candidates; ++i) {
    root[i] = i;
    while (true) {
      Positions betters;
      for (int64_t j = first; j < first + candidates; ++j) {
        if (score(j) > score(root[i])) betters.push_back(j);
      }
      const int64_t better = nearest(keys, root[i], betters);
      if (better < 0 || !keys.similar(root[i], better, target)) break;
      root[i] = better;
    }
    sums[root[i]] += score(i);
  }
  Positions roots, kept, always_kept;
  for (const auto& [one, sum] : sums) roots.push_back(one);
  std::ranges::stable_sort(roots, [&](int64_t a, int64_t b) { return sums[a] > sums[b]; });
  roots.resize(std::min(roots.size(), static_cast<size_t>(k)));
  Clusters expected;
  for (const auto& [i, one] : root) {
    if (i != one && std::ranges::find(roots, one) != roots.end()) expected[one].push_back(i);
  }
  for (int64_t i = 0; i < keys.keys.rows(); ++i) {
    if (i < first || i >= first + candidates) always_kept.push_back(i);
  }
  kept = always_kept;
  kept.insert(kept.end(), roots.begin(), roots.end());
  std::ranges::sort(kept);

  RC_CLASSIFY(!expected.empty(), "some merge");
  RC_CLASSIFY(std::ssize(sums) < k, "fewer roots than places");
  const MergeTargets targets = merge_first(keys.keys, scores, always_kept, k, target);
  RC_ASSERT(targets.kept == kept);
  RC_ASSERT(members(targets) == expected);
}

}  // namespace
}  // namespace kvbound::reference::merge_targets_test
