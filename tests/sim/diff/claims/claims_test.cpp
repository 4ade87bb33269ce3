#include <gtest/gtest.h>

#include <kvbound/sim/diff/claims/claims.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::claims_test {
namespace {

using test::matrix;

// A record of two KV heads and two steps, all of whose numbers differ.
LayerRecord merging_record() {
  LayerRecord record;
  record.prompt.kept = {{0, 2}, {1}};
  record.prompt.score_positions = {0, 1, 2};
  record.prompt.score = matrix({{1, 2, 3}, {4, 5, 6}});
  record.prompt.merges.resize(2);
  record.prompt.merges[0].votes = {1, 2};
  record.prompt.merges[0].keys = matrix({{1, 2}, {3, 4}});
  record.prompt.merges[0].values = matrix({{7, 8}, {9, 10}});
  record.prompt.merges[1].votes = {3};
  record.prompt.merges[1].keys = matrix({{5, 6}});
  record.prompt.merges[1].values = matrix({{11, 12}});
  record.steps.resize(2);
  record.steps[0].output = matrix({{1, 2}, {3, 4}});
  record.steps[0].evicted = {0, -1};
  record.steps[0].merged_into = {2, -2};
  record.steps[1].output = matrix({{5, 6}, {7, 8}});
  record.steps[1].evicted = {2, 1};
  record.steps[1].merged_into = {-1, 3};
  return record;
}

TEST(Claims, OfARecordAreItsNumbersInTheOrderOfADump) {
  const LayerClaims claims = claims_of(merging_record(), Dtype::f32);
  EXPECT_EQ(*claims.kept, (std::vector<std::vector<int64_t>>{{0, 2}, {1}}));
  EXPECT_EQ(*claims.score_positions, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(claims.score->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(claims.score->numbers, (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(claims.votes->shape, std::vector<int64_t>{3});
  EXPECT_EQ(claims.votes->numbers, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(claims.merged_key->shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(claims.merged_key->numbers, (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(claims.merged_value->shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(claims.merged_value->numbers, (std::vector<double>{7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(*claims.evicted, (std::vector<int64_t>{0, -1, 2, 1}));
  EXPECT_EQ(*claims.merged_into, (std::vector<int64_t>{2, -2, -1, 3}));
  EXPECT_EQ(claims.output->shape, (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(claims.output->numbers, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
  for (const auto* claim :
       {&claims.score, &claims.votes, &claims.merged_key, &claims.merged_value, &claims.output}) {
    EXPECT_EQ((*claim)->storage, Dtype::f32);
  }
}

// The record's first step merges one entry in KV head 0; the second one begins with a rebuild.
LayerRecord decoding_record() {
  LayerRecord record = merging_record();
  for (HeadMerge& merge : record.prompt.merges) merge.target_of = {0, 1, 2};
  record.steps[0].merges.resize(2);
  record.steps[0].merges[0] = {{}, {}, {2}, {5}, matrix({{13, 14}}), matrix({{15, 16}})};
  record.steps[1].rebuilt = true;
  record.steps[1].merged_into = {-1, -2};
  record.steps[1].merges = record.prompt.merges;
  return record;
}

TEST(Claims, OfDecodeStepsAreTheEntriesThatMergedAndZeros) {
  const LayerClaims claims = claims_of(decoding_record(), Dtype::f32);
  EXPECT_EQ(claims.step_votes->shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(claims.step_votes->numbers, (std::vector<double>{5, 0, 0, 0}));
  EXPECT_EQ(claims.step_merged_key->shape, (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(claims.step_merged_key->numbers, (std::vector<double>{13, 14, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(claims.step_merged_value->shape, (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(claims.step_merged_value->numbers, (std::vector<double>{15, 16, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(claims.step_merged_key->storage, Dtype::f32);
}

TEST(Claims, OfRebuildsAreTheirCaches) {
  const LayerClaims claims = claims_of(decoding_record());
  EXPECT_EQ(claims.rebuilt_votes->numbers, claims.votes->numbers);
  EXPECT_EQ(claims.rebuilt_merged_key->numbers, claims.merged_key->numbers);
  EXPECT_EQ(claims.rebuilt_merged_key->shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(claims.rebuilt_merged_value->numbers, claims.merged_value->numbers);
  const LayerClaims none = claims_of(merging_record());
  EXPECT_FALSE(none.rebuilt_votes || none.rebuilt_merged_key || none.rebuilt_merged_value);
  EXPECT_FALSE(none.step_votes || none.step_merged_key || none.step_merged_value) << "it has no clusters";
}

TEST(Claims, OfTwoStagesHaveTheirNormsAndScores) {
  LayerRecord record = merging_record();
  record.prompt.projected_value_norms = matrix({{1, 2, 3}});
  record.prompt.stage_two_score = matrix({{4, 5, 6}});
  const LayerClaims claims = claims_of(record);
  EXPECT_EQ(claims.projected_value_norms->numbers, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(claims.stage_two_score->numbers, (std::vector<double>{4, 5, 6}));
  EXPECT_EQ(claims.stage_two_score->storage, Dtype::f64);
}

TEST(Claims, AreNoneOfWhatARecordLacks) {
  LayerRecord record = merging_record();
  record.prompt.score = {};
  record.prompt.merges = {};
  for (StepRecord& step : record.steps) step.evicted = step.merged_into = {};
  const LayerClaims claims = claims_of(record);
  EXPECT_FALSE(claims.score || claims.score_positions || claims.projected_value_norms ||
               claims.stage_two_score);
  EXPECT_FALSE(claims.votes || claims.merged_key || claims.merged_value);
  EXPECT_FALSE(claims.evicted || claims.merged_into);
  EXPECT_TRUE(claims.kept && claims.output);
  record.steps.clear();
  EXPECT_FALSE(claims_of(record).output);
}

}  // namespace
}  // namespace kvbound::sim::claims_test
