#include <gtest/gtest.h>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/sim/diff/judge/merged_entries.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::merged_entries_test {
namespace {

using test::matrix;

// One entry whose key is (1, 2), or (5, 6) where the queries have another rank.
ExpectedEntries of_two_ranks(double other_errors = 0.1) {
  ExpectedEntries entries{
      {2}, matrix({{1, 2}}), matrix({{7, 8}}), {matrix({{4.1, 4.1}}), matrix({{0.1, 0.1}})}, {{1, 1}}};
  entries.possible_keys[0] = {{{1, 2}, {0.1, 0.1}}, {{5, 6}, {other_errors, other_errors}}};
  entries.condition_numbers = {3};
  return entries;
}

TensorAgreement judged_key(const ExpectedEntries& entries, std::vector<double> claimed) {
  const RealClaim keys{{1, 2}, std::move(claimed)};
  MergedAgreement judge({nullptr, &keys, nullptr}, 2, true);
  judge.add(entries);
  std::vector<TensorAgreement> agreements;
  judge.append("step_", agreements);
  EXPECT_EQ(agreements.size(), 1u) << "only what is claimed is judged";
  return agreements.front();
}

TEST(MergedEntries, JudgesAKeyAsThatOfTheNearestRank) {
  for (const auto& claimed : {std::vector{1.05, 2.0}, std::vector{4.95, 6.0}}) {
    const TensorAgreement found = judged_key(of_two_ranks(), claimed);
    EXPECT_EQ(found.tensor, "step_merged_key");
    EXPECT_EQ(found.outside + found.undecided, 0);
    EXPECT_EQ(found.judged, 2);
    EXPECT_EQ(found.condition_number.value(), 3);
  }
  const TensorAgreement wrong = judged_key(of_two_ranks(), {4.7, 6});
  EXPECT_EQ(wrong.outside, 1);
  EXPECT_EQ(wrong.worst.value().expected, 5);
}

TEST(MergedEntries, FindsAKeyWhoseComponentsAreOfDifferentRanks) {
  EXPECT_EQ(judged_key(of_two_ranks(), {1, 6}).outside, 1);
}

TEST(MergedEntries, LeavesUndecidedAKeyThatMayBeOfARankWithoutABound) {
  const ExpectedEntries entries = of_two_ranks(kInfinity);
  EXPECT_EQ(judged_key(entries, {40, 50}).undecided, 2);
  EXPECT_EQ(judged_key(entries, {40, 50}).condition_number.value(), 3);
  EXPECT_EQ(judged_key(entries, {1, 2}).judged, 2);
}

TEST(MergedEntries, ReportsTheConditionNumberOnlyOfQueriesThatAreIllConditioned) {
  ExpectedEntries entries = of_two_ranks();
  entries.possible_keys.clear();
  EXPECT_FALSE(judged_key(entries, {1, 2}).condition_number);
  entries.errors.keys(0, 1) = kInfinity;
  EXPECT_EQ(judged_key(entries, {1, 2}).condition_number.value(), 3);
}

// Votes of a head are a row, and each value.
TEST(MergedEntries, JudgesRowsAsWholes) {
  const ExpectedEntries two{{2, 3},
                            matrix({{1, 2}, {3, 4}}),
                            matrix({{7, 8}, {5, 6}}),
                            {Matrix(2, 2), matrix({{1, 1}, {1, 1}})},
                            {{1, 1}, {2, 2}},
                            {},
                            {},
                            {},
                            {{}, {0.5, 0}}};
  const RealClaim votes{{5}, {2, 3, 9, 4, 6}}, values{{5, 2}, {7, 8, 5, 6, 1, 1, 7, 8, 5, 6}};
  MergedAgreement judge({&votes, nullptr, &values}, 2, true);
  judge.add(two);
  judge.skip(1);
  judge.add(two);
  std::vector<TensorAgreement> agreements;
  judge.append("", agreements);
  const FunctionalAgreement &of_votes = agreements[0].functionals.at(0),
                            &of_values = agreements[1].functionals.at(0);
  EXPECT_EQ(of_votes.rows, 2);
  EXPECT_EQ(of_votes.outside_at, std::vector<int64_t>{3}) << "the first entry of the head";
  EXPECT_EQ(of_votes.worst_at, std::vector<int64_t>{3});
  EXPECT_NEAR(of_votes.worst.value, 2, 1e-12);
  EXPECT_EQ(agreements[0].diagnosis.value().fault, "votes are 2.000 of what they should be");
  EXPECT_EQ(of_values.rows, 4);
  EXPECT_EQ(of_values.judged_at, (std::vector<int64_t>{0, 2, 6, 8}));
  EXPECT_NEAR(of_values.all.band, (15 + 10.5 + 15 + 10.5) / (113 + 61 + 113 + 61), 1e-12);
}

TEST(MergedEntries, GoesThroughTheRowsInTheirOrder) {
  const RealClaim votes{{3}, {2, 9, 0}}, values{{3, 2}, {7, 8, 9, 9, 0, 0}};
  MergedAgreement judge({&votes, nullptr, &values}, 2, true);
  judge.add(of_two_ranks());
  judge.skip(1);
  judge.add_nothing();
  std::vector<TensorAgreement> agreements;
  judge.append("", agreements);
  ASSERT_EQ(agreements.size(), 2u);
  EXPECT_EQ(agreements[0].tensor, "votes");
  EXPECT_EQ(agreements[1].tensor, "merged_value");
  for (const TensorAgreement& tensor : agreements) {
    EXPECT_EQ(tensor.outside, 0);
    EXPECT_EQ(tensor.undecided, tensor.elements / 3) << "of the row that was skipped";
  }
}

}  // namespace
}  // namespace kvbound::sim::merged_entries_test
