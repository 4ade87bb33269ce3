#include <gtest/gtest.h>

#include <kvbound/sim/diff/differing_caches.hpp>

namespace kvbound::sim::differing_caches_test {
namespace {

using Bits = std::vector<bool>;

// One KV head that keeps 1, 2, 3 and evicts these positions; merged: what each of them
// merges into, if entries merge.
FollowedChoices evicting(const std::vector<int64_t>& evicted, const std::vector<int64_t>& merged = {}) {
  FollowedChoices choices{{{1, 2, 3}}, {{}}, {}};
  for (size_t t = 0; t < evicted.size(); ++t) {
    choices.steps.push_back({{evicted[t]}, {}});
    if (!merged.empty()) choices.steps.back().merged_into = {merged[t]};
  }
  return choices;
}

FollowedStep rebuilt(const std::vector<int64_t>& kept, const std::vector<int64_t>& target_of) {
  FollowedStep step{{-1}, {-2}};
  step.kept = {kept};
  step.target_of = {target_of};
  return step;
}

TEST(DifferingCaches, AreNoneOfTheSameChoices) {
  const FollowedChoices choices = evicting({1, -1, 3});
  const DifferingCaches caches = differing_caches(choices, choices);
  for (const Bits& each : {caches.attended, caches.history, caches.left, caches.merged})
    EXPECT_EQ(each, Bits(3));
  EXPECT_EQ(caches.kept, Bits(1));
  EXPECT_EQ(caches.prompt, Bits(1));
}

// The step's queries attend before the eviction.
TEST(DifferingCaches, BeginWithTheStepBehindADifferentEviction) {
  const DifferingCaches caches = differing_caches(evicting({1, 2, -1}), evicting({1, 3, -1}));
  EXPECT_EQ(caches.attended, (Bits{false, false, true}));
  EXPECT_EQ(caches.history, (Bits{false, false, true}));
  EXPECT_EQ(caches.left, (Bits{false, true, true}));
}

TEST(DifferingCaches, EndWhereTheSameEntriesRemainThoughTheHistoryDiffers) {
  const DifferingCaches caches = differing_caches(evicting({1, 2, -1}), evicting({2, 1, -1}));
  EXPECT_EQ(caches.attended, (Bits{false, true, false}));
  EXPECT_EQ(caches.history, (Bits{false, true, true}));
}

TEST(DifferingCaches, OfMergedEntriesDoNotEndBeforeARebuild) {
  FollowedChoices a = evicting({1, 2}, {3, 3}), b = evicting({2, 1}, {3, 3});
  a.steps.push_back({{-1}, {-2}});
  b.steps.push_back({{-1}, {-2}});
  EXPECT_EQ(differing_caches(a, b).attended, (Bits{false, true, true}));
  a.steps.push_back(rebuilt({2, 4}, {-1, -1, 2, 2, 4}));
  b.steps.push_back(rebuilt({2, 4}, {-1, -1, 2, 2, 4}));
  const DifferingCaches caches = differing_caches(a, b);
  EXPECT_EQ(caches.attended, (Bits{false, true, true, false}));
  EXPECT_EQ(caches.rebuilt, Bits{false});
}

TEST(DifferingCaches, DifferByWhatAnEvictedEntryMergedInto) {
  const DifferingCaches caches = differing_caches(evicting({1, -1}, {2, -2}), evicting({1, -1}, {3, -2}));
  EXPECT_EQ(caches.attended, (Bits{false, true}));
  EXPECT_EQ(caches.left, (Bits{false, true}));
  EXPECT_EQ(caches.merged, (Bits{true, true}));
}

TEST(DifferingCaches, DifferByTheKeptEntriesOrTheClustersOfOneHead) {
  FollowedChoices a{{{1, 2}, {1, 2}, {1, 2}}, {{1, 1, 2}, {1, 1, 2}, {1, 1, 2}}, {}};
  FollowedChoices b{{{1, 3}, {1, 2}, {1, 2}}, {{1, 1, 2}, {2, 1, 2}, {1, 1, 2}}, {}};
  for (FollowedChoices* choices : {&a, &b}) choices->steps.resize(1);
  const DifferingCaches caches = differing_caches(a, b);
  EXPECT_EQ(caches.kept, (Bits{true, false, false}));
  EXPECT_EQ(caches.prompt, (Bits{true, true, false}));
  EXPECT_EQ(caches.attended, (Bits{true, true, false}));
}

TEST(DifferingCaches, DifferByTheKeptEntriesOrTheClustersOfARebuild) {
  FollowedChoices a = evicting({}), b = a;
  a.steps = {rebuilt({2, 4}, {2, 2, 2}), rebuilt({2, 4}, {2, 2, 2}), rebuilt({2, 4}, {2, 2, 2})};
  b.steps = {rebuilt({2, 3}, {2, 2, 2}), rebuilt({2, 4}, {4, 2, 2}), rebuilt({2, 4}, {2, 2, 2})};
  const DifferingCaches caches = differing_caches(a, b);
  EXPECT_EQ(caches.rebuilt, (Bits{true, true, false}));
  EXPECT_EQ(caches.attended, caches.rebuilt);
}

TEST(DifferingCaches, AreToldOverTheStepsThatBothHave) {
  EXPECT_EQ(differing_caches(evicting({1, 2}), evicting({1})).attended, Bits{false});
  FollowedChoices no_replay{{{1, 2, 4}}, {}, {}};  // of claims that depend on no step
  const DifferingCaches caches = differing_caches(no_replay, evicting({1}));
  EXPECT_TRUE(caches.attended.empty());
  EXPECT_EQ(caches.prompt, Bits{true});
}

}  // namespace
}  // namespace kvbound::sim::differing_caches_test
