#include <algorithm>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/sim/study/score_ties.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::score_ties_test {
namespace {

using Numbers = std::vector<double>;
using test::message_of;

void expect_ties(const Numbers& scores, int64_t k, double share, const std::optional<CutTies>& cut,
                 double tie_break) {
  const ScoreTies ties = score_ties(scores, k);
  EXPECT_DOUBLE_EQ(ties.share, share);
  EXPECT_DOUBLE_EQ(ties.tie_break, tie_break);
  ASSERT_EQ(ties.cut.has_value(), cut.has_value());
  if (!cut) return;
  EXPECT_EQ(ties.cut->tied, cut->tied);
  EXPECT_EQ(ties.cut->selected, cut->selected);
}

TEST(ScoreTies, OfDistinctScoresAreNone) {
  for (const int64_t k : {1, 2, 3}) expect_ties({0.5, 2, 1}, k, 0, CutTies{1, 1}, 0);
}

TEST(ScoreTies, OfEqualScoresAreAll) {
  expect_ties({3, 3, 3, 3, 3}, 2, 1, CutTies{5, 2}, 1);
  expect_ties({0, 0}, 2, 1, CutTies{2, 2}, 0);
}

TEST(ScoreTies, AtTheCutAreThoseOfTheLastSelected) {
  const Numbers scores{3, 1, 5, 3, 1, 3};
  expect_ties(scores, 1, 5.0 / 6, CutTies{1, 1}, 0);
  expect_ties(scores, 2, 5.0 / 6, CutTies{3, 1}, 1.0 / 2);
  expect_ties(scores, 3, 5.0 / 6, CutTies{3, 2}, 2.0 / 3);
  expect_ties(scores, 4, 5.0 / 6, CutTies{3, 3}, 0);
  expect_ties(scores, 5, 5.0 / 6, CutTies{2, 1}, 1.0 / 5);
  expect_ties(scores, 6, 5.0 / 6, CutTies{2, 2}, 0);
}

TEST(ScoreTies, WithoutASelectionHaveNoCut) {
  expect_ties({1, 1, 2}, 0, 2.0 / 3, {}, 0);
  expect_ties({}, 0, 0, {}, 0);
  EXPECT_EQ(message_of<ShapeMismatch>([] { score_ties(Numbers{1, 2}, 3); }), "k is 3, not in 0..2");
}

TEST(RoundedToBfloat16, KeepsEightBitsAndRoundsMidpointsToEven) {
  EXPECT_EQ(rounded_to_bfloat16(Numbers{1, 1 + 0x1p-9, 1 + 0x1p-8, 1 + 0x1.1p-8, 1 + 0x1.8p-7, 1e-300}),
            (Numbers{1, 1, 1, 1 + 0x1p-7, 1 + 0x1p-6, 0}));
}

RC_GTEST_PROP(ScoreTiesProperty, TieBreakCountsTheSelectedThatEqualAnEvictedEntry, ()) {
  const Numbers scores = test::numbers(*test::dyadics(1, 30, 2));
  const int64_t k = *test::integer(0, std::ssize(scores));
  const std::vector<int64_t> selected = reference::select_top(scores, k);
  const auto is_selected = [&](int64_t j) { return std::ranges::binary_search(selected, j); };
  int64_t tied = 0, replaceable = 0;
  for (int64_t j = 0; j < std::ssize(scores); ++j) {
    bool has_twin = false, has_evicted_twin = false;
    for (int64_t other = 0; other < std::ssize(scores); ++other) {
      if (other == j || scores[other] != scores[j]) continue;
      has_twin = true;
      has_evicted_twin |= !is_selected(other);
    }
    tied += has_twin;
    replaceable += is_selected(j) && has_evicted_twin;
  }
  const ScoreTies ties = score_ties(scores, k);
  RC_ASSERT(ties.share == static_cast<double>(tied) / static_cast<double>(scores.size()));
  RC_ASSERT(ties.tie_break == (k > 0 ? static_cast<double>(replaceable) / static_cast<double>(k) : 0));
  RC_CLASSIFY(replaceable > 0);
}

}  // namespace
}  // namespace kvbound::sim::score_ties_test
