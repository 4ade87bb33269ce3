#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/merged_cache.hpp>

#include "support/random_layer.hpp"

namespace kvbound::test::merged_cache_test {
namespace {

using namespace reference;
using Positions = std::vector<int64_t>;

// Five prompt tokens and three steps, one number per key and value: keys are the positions,
// values the positions plus 100.
struct Layer {
  Matrix keys = matrix({{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}});
  Matrix values = matrix({{100}, {101}, {102}, {103}, {104}, {105}, {106}, {107}});
};

Matrix column(const std::vector<double>& numbers) {
  Matrix matrix;
  for (const double& number : numbers) matrix.append_row(VectorView(&number, 1));
  return matrix;
}

HeadMerge head_merge(const std::vector<MergeCluster>& clusters, const Positions& positions,
                     const std::vector<double>& votes, const std::vector<double>& keys,
                     const std::vector<double>& values) {
  return {clusters, {}, positions, votes, column(keys), column(values)};
}

void expect_entries(const CacheEntries& entries, const Positions& positions, const std::vector<double>& votes,
                    const std::vector<double>& keys, const std::vector<double>& values) {
  EXPECT_EQ(entries.positions, positions);
  EXPECT_EQ(entries.votes, votes);
  EXPECT_TRUE(std::ranges::equal(entries.keys.numbers(), keys));
  EXPECT_TRUE(std::ranges::equal(entries.values.numbers(), values));
}

// The second KV head's record: 1 and 3 were merged into 0, 2 was dropped.
PromptRecord prompt_record() {
  PromptRecord prompt;
  prompt.kept = {{4}, {0, 4}};
  prompt.merges = {HeadMerge(), head_merge({{0, {1, 3}, {}}}, {0, 4}, {3, 1}, {1.5, 4}, {101.5, 104})};
  return prompt;
}

TEST(MergedCache, BeginsWithWhatTheRecordOfThePromptHas) {
  const Layer layer;
  const PromptRecord prompt = prompt_record();
  const MergedCache cache(layer.keys, layer.values, 5, 1, prompt);
  expect_entries(cache.entries(), {0, 4}, {3, 1}, {1.5, 4}, {101.5, 104});
  ASSERT_TRUE(cache.prompt_merge());
  expect_entries(cache.prompt_merge()->before, {0, 1, 3, 4}, {1, 1, 1, 1}, {0, 1, 3, 4},
                 {100, 101, 103, 104});
  EXPECT_EQ(cache.prompt_merge()->clusters->size(), 1u);
}

TEST(MergedCache, OfAPolicyThatDoesNotMergeHasTheLayersEntries) {
  const Layer layer;
  PromptRecord prompt;
  prompt.kept = {{1, 3}};
  StepRecord step;
  step.evicted = {3};
  MergedCache cache(layer.keys, layer.values, 5, 0, prompt);
  EXPECT_FALSE(cache.prompt_merge());
  EXPECT_FALSE(cache.enter(step));
  expect_entries(cache.entries(), {1, 3, 5}, {1, 1, 1}, {1, 3, 5}, {101, 103, 105});
  EXPECT_FALSE(cache.evict(step));
  expect_entries(cache.entries(), {1, 5}, {1, 1}, {1, 5}, {101, 105});
}

TEST(MergedCache, FollowsMergesWhileDecoding) {
  const Layer layer;
  const PromptRecord prompt = prompt_record();
  MergedCache cache(layer.keys, layer.values, 5, 1, prompt);
  StepRecord merging;
  merging.evicted = {-1, 4};
  merging.merged_into = {-2, 0};
  merging.merges = {HeadMerge(), head_merge({{0, {4}, {}}}, {0}, {4},
                                            {
                                                2.25,
                                            },
                                            {102})};
  EXPECT_FALSE(cache.enter(merging));
  const std::optional<CacheMerge> merge = cache.evict(merging);
  ASSERT_TRUE(merge);
  expect_entries(merge->before, {0, 4, 5}, {3, 1, 1}, {1.5, 4, 5}, {101.5, 104, 105});
  expect_entries(cache.entries(), {0, 5}, {4, 1}, {2.25, 5}, {102, 105});
}

TEST(MergedCache, LeavesOutWhoIsDropped) {
  const Layer layer;
  const PromptRecord prompt = prompt_record();
  MergedCache cache(layer.keys, layer.values, 5, 1, prompt);
  StepRecord dropping;
  dropping.evicted = {-1, 0};
  dropping.merged_into = {-2, -1};
  dropping.merges.resize(2);
  cache.enter(dropping);
  EXPECT_FALSE(cache.evict(dropping)) << "nothing merged";
  expect_entries(cache.entries(), {4, 5}, {1, 1}, {4, 5}, {104, 105});
  StepRecord nobody;
  nobody.evicted = {-1, -1};
  nobody.merged_into = {-2, -2};
  cache.enter(nobody);
  EXPECT_FALSE(cache.evict(nobody));
  expect_entries(cache.entries(), {4, 5, 6}, {1, 1, 1}, {4, 5, 6}, {104, 105, 106});
}

TEST(MergedCache, IsAnotherAfterARebuild) {
  const Layer layer;
  const PromptRecord prompt = prompt_record();
  MergedCache cache(layer.keys, layer.values, 5, 1, prompt);
  StepRecord plain;
  plain.evicted = {-1, 0};
  plain.merges.resize(2);
  cache.enter(plain);
  cache.evict(plain);
  StepRecord rebuilding;
  rebuilding.evicted = {-1, -1};
  rebuilding.rebuilt = true;
  rebuilding.merges = {HeadMerge(),
                       head_merge({{2, {0}, {}}, {6, {1, 5}, {}}}, {2, 6}, {2, 3}, {1, 4}, {101, 104})};
  const std::optional<CacheMerge> merge = cache.enter(rebuilding);
  ASSERT_TRUE(merge);
  expect_entries(merge->before, {0, 1, 2, 5, 6}, {1, 1, 1, 1, 1}, {0, 1, 2, 5, 6}, {100, 101, 102, 105, 106});
  expect_entries(cache.entries(), {2, 6}, {2, 3}, {1, 4}, {101, 104});
  EXPECT_FALSE(cache.evict(rebuilding)) << "what merged has been told";
  StepRecord grown;
  EXPECT_FALSE(cache.enter(grown));
  EXPECT_FALSE(cache.evict(grown)) << "of a host that only grows";
  EXPECT_EQ(cache.entries().positions, (Positions{2, 6, 7}));
}

TEST(MergedCache, SpreadsOneValueOverSeveralEntries) {
  const Layer layer;
  PromptRecord prompt;
  prompt.kept = {{0, 2, 4}};
  prompt.merges = {head_merge({}, {0, 2, 4}, {1, 1, 1}, {0, 2, 4}, {100, 102, 104})};
  MergedCache cache(layer.keys, layer.values, 5, 0, prompt);
  EXPECT_FALSE(cache.prompt_merge());
  StepRecord spreading;
  spreading.evicted = {0};
  spreading.merged_into = {2};
  spreading.merges = {head_merge({{2, {0}, {}}}, {2, 4, 5}, {1, 1, 1}, {2, 4, 5}, {135, 137, 138})};
  cache.enter(spreading);
  ASSERT_TRUE(cache.evict(spreading));
  expect_entries(cache.entries(), {2, 4, 5}, {1, 1, 1}, {2, 4, 5}, {135, 137, 138});
}

// The error message for a prompt record of the second KV head.
std::string prompt_error(const PromptRecord& prompt) {
  return message_of<ShapeMismatch>([&] {
    const Layer layer;
    MergedCache(layer.keys, layer.values, 5, 1, prompt);
  });
}

TEST(MergedCache, RefusesARecordOfThePromptThatContradictsItself) {
  PromptRecord prompt;
  prompt.kept = {{0, 1}, {0, 5}};
  EXPECT_EQ(prompt_error(prompt), "position 5 is none of the 5 that there are");
  prompt.kept[1] = {-1, 0};
  EXPECT_EQ(prompt_error(prompt), "position -1 is none of the 5 that there are");
  prompt.kept[1] = {3, 3};
  EXPECT_EQ(prompt_error(prompt), "position 3 comes after position 3");
  prompt.kept.pop_back();
  EXPECT_EQ(prompt_error(prompt), "kept positions of 1 KV heads are recorded, but not of KV head 1");
  prompt.kept.push_back({0, 1});
  prompt.merges.resize(1);
  EXPECT_EQ(prompt_error(prompt), "merges of 1 KV heads are recorded, but not of KV head 1");
  const PromptRecord right = prompt_record();
  prompt = right;
  prompt.merges[1].clusters[0].from = {1, 7};
  EXPECT_EQ(prompt_error(prompt), "position 7 is none of the 5 that there are") << "not yet";
  prompt = right;
  prompt.merges[1].votes.pop_back();
  EXPECT_EQ(prompt_error(prompt), "merged votes is 1 but merged positions is 2");
  prompt = right;
  prompt.merges[1].keys = column({1});
  EXPECT_EQ(prompt_error(prompt), "rows of merged keys is 1 but merged positions is 2");
  prompt = right;
  prompt.merges[1].values = Matrix(2, 2);
  EXPECT_EQ(prompt_error(prompt), "columns of merged values is 2 but head_dim is 1");
}

// The error message for a step record after prompt_record(), whose second KV head holds 0 and 4.
std::string step_error(const StepRecord& step) {
  const Layer layer;
  const PromptRecord prompt = prompt_record();
  MergedCache cache(layer.keys, layer.values, 5, 1, prompt);
  return message_of<ShapeMismatch>([&] {
    cache.enter(step);
    cache.evict(step);
  });
}

TEST(MergedCache, RefusesAStepThatNamesAPositionWhichIsNotThere) {
  StepRecord step;
  step.evicted = {-1, 3};
  EXPECT_EQ(step_error(step), "position 3 is in no entry of the cache") << "it merged at the prompt's end";
  step.evicted = {-1};
  EXPECT_EQ(step_error(step), "evictions of 1 KV heads are recorded, but not of KV head 1");
  step.evicted = {-1, 4};
  step.merges = {HeadMerge(), head_merge({{2, {4}, {}}}, {0}, {4}, {2}, {102})};
  EXPECT_EQ(step_error(step), "no error") << "the group is looked up by who asks for its members";
  step.merges[1] = head_merge({{0, {3}, {}}}, {0}, {4}, {2}, {102});
  EXPECT_EQ(step_error(step), "position 3 is in no entry of the cache") << "a member";
  step.merges[1] = head_merge({{0, {4}, {}}}, {2}, {4}, {2}, {102});
  EXPECT_EQ(step_error(step), "position 2 is in no entry of the cache") << "an entry that changed";
  step.merges[1] = head_merge({{0, {4}, {}}}, {4}, {4}, {2}, {102});
  EXPECT_EQ(step_error(step), "position 4 is in no entry of the cache") << "it has left";
  step.merges.clear();
  step.rebuilt = true;
  EXPECT_EQ(step_error(step), "merges of 0 KV heads are recorded, but not of KV head 1");
}

TEST(MergedCache, RefusesMoreStepsThanTheLayerHas) {
  const Layer layer;
  const PromptRecord prompt = prompt_record();
  MergedCache cache(layer.keys, layer.values, 5, 1, prompt);
  for (int step = 0; step < 3; ++step) cache.enter({});
  EXPECT_EQ(message_of<ShapeMismatch>([&] { cache.enter({}); }),
            "position 8 is none of the 8 that there are");
}

}  // namespace
}  // namespace kvbound::test::merged_cache_test
