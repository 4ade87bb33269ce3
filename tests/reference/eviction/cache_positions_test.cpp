#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/cache_positions.hpp>

#include "support/random_layer.hpp"

namespace kvbound::test::cache_positions_test {
namespace {

using reference::CachePositions;
using Positions = std::vector<int64_t>;

PromptRecord prompt_record() {
  PromptRecord prompt;
  prompt.kept = {{0, 3}, {1, 4}};
  prompt.stage_one = {{0}, {4}};
  return prompt;
}

// A step in which the second of two KV heads evicts this position.
StepRecord evicting(int64_t position) {
  StepRecord step;
  step.evicted = {kNotEvicted, position};
  return step;
}

TEST(CachePositions, GrowByEveryStepOfAHostThatEvictsNothing) {
  const PromptRecord prompt = prompt_record();
  const StepRecord step;
  CachePositions positions(prompt, 0, 5);
  EXPECT_EQ(positions.now(), (Positions{0, 3}));
  EXPECT_EQ(positions.enter(step), (Positions{0, 3, 5}));
  EXPECT_EQ(positions.evict(step), (Positions{0, 3, 5}));
  EXPECT_EQ(positions.enter(step), (Positions{0, 3, 5, 6}));
}

TEST(CachePositions, LoseWhatIsEvictedAfterTheQueriesAttended) {
  const PromptRecord prompt = prompt_record();
  CachePositions positions(prompt, 1, 5);
  EXPECT_EQ(positions.enter(evicting(1)), (Positions{1, 4, 5}));
  EXPECT_EQ(positions.evict(evicting(1)), (Positions{4, 5}));
  EXPECT_EQ(positions.enter(evicting(kNotEvicted)), (Positions{4, 5, 6}));
  EXPECT_EQ(positions.evict(evicting(kNotEvicted)), (Positions{4, 5, 6}));
}

TEST(CachePositions, AtAStepAreThoseThatItsQueriesFind) {
  const PromptRecord prompt = prompt_record();
  const std::vector<StepRecord> steps{evicting(1), evicting(5), evicting(6)};
  CachePositions one_by_one(prompt, 1, 5);
  EXPECT_EQ(one_by_one.at(steps, 0), (Positions{1, 4, 5}));
  EXPECT_EQ(one_by_one.at(steps, 1), (Positions{4, 5, 6}));
  EXPECT_EQ(one_by_one.at(steps, 2), (Positions{4, 6, 7}));
  CachePositions at_once(prompt, 1, 5);
  EXPECT_EQ(at_once.at(steps, 2), (Positions{4, 6, 7}));
  EXPECT_EQ(at_once.at(steps, 2), (Positions{4, 6, 7})) << "asked twice";
}

TEST(CachePositions, AreTheRebuildsOwnAfterARebuild) {
  const PromptRecord prompt = prompt_record();
  StepRecord rebuilding;
  rebuilding.rebuilt = true;
  rebuilding.evicted = {kNotEvicted, kNotEvicted};
  rebuilding.merges.resize(2);
  rebuilding.merges[1].positions = {0, 2, 5};
  rebuilding.stage_one = {{}, {2}};
  CachePositions positions(prompt, 1, 5);
  EXPECT_EQ(positions.enter(rebuilding), (Positions{0, 2, 5}));
  EXPECT_EQ(positions.of_stage_one(), (Positions{2})) << "the rebuild's stage one";
  EXPECT_EQ(positions.evict(rebuilding), (Positions{0, 2, 5}));
  EXPECT_EQ(positions.enter(evicting(kNotEvicted)), (Positions{0, 2, 5, 6}));
  EXPECT_EQ(positions.of_stage_one(), (Positions{2, 6}));
}

TEST(CachePositions, OfStageOneLeaveOutWhatStageTwoChose) {
  const PromptRecord prompt = prompt_record();
  CachePositions positions(prompt, 1, 5);
  EXPECT_EQ(positions.of_stage_one(), (Positions{4}));
  positions.enter(evicting(4));
  EXPECT_EQ(positions.of_stage_one(), (Positions{4, 5}));
  positions.evict(evicting(4));
  EXPECT_EQ(positions.of_stage_one(), (Positions{5}));
}

TEST(CachePositions, RefuseRecordsThatContradictThemselves) {
  const PromptRecord prompt = prompt_record();
  CachePositions positions(prompt, 1, 5);
  positions.enter(evicting(2));
  EXPECT_EQ(message_of<ShapeMismatch>([&] { positions.evict(evicting(2)); }),
            "position 2 is in no entry of the cache");
  StepRecord short_of_heads;
  short_of_heads.evicted = {1};
  EXPECT_EQ(message_of<ShapeMismatch>([&] { positions.evict(short_of_heads); }),
            "evictions of 1 KV heads are recorded, but not of KV head 1");
  EXPECT_EQ(message_of<ShapeMismatch>([&] { CachePositions(prompt, 2, 5); }),
            "kept positions of 2 KV heads are recorded, but not of KV head 2");
}

}  // namespace
}  // namespace kvbound::test::cache_positions_test
