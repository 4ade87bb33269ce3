#include <algorithm>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/eviction/allocation.hpp>
#include <kvbound/sim/diff/judge/allocation.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/trace_layer.hpp"

namespace kvbound::sim::allocation_test {
namespace {

using test::integer;
using Counts = std::vector<int64_t>;

AdaKv adakv(const std::string& safeguard) { return {*parse_decimal(safeguard)}; }

Explanation explain(const std::string& safeguard, const std::vector<double>& scores,
                    const std::vector<double>& errors, const Counts& candidates, const Counts& shared) {
  return sim::explain(adakv(safeguard), {scores, errors}, candidates, shared);
}

TEST(AllocationExplanation, OfExactScoresIsTheReferencesAlone) {
  const std::vector<double> scores{9, 8, 1, 2, 7, 3}, exact(6);
  EXPECT_EQ(explain("0", scores, exact, {1, 2}, {2, 1}), Explanation::found);
  EXPECT_EQ(explain("0", scores, exact, {1, 2}, {1, 2}), Explanation::none);
  EXPECT_EQ(explain("0", scores, exact, {1, 2}, {3, 0}), Explanation::none);
  EXPECT_EQ(explain("1", scores, exact, {1, 2}, {1, 2}), Explanation::found);
  EXPECT_EQ(explain("0", scores, exact, {1, 2}, {2, 2}), Explanation::none) << "another total";
  EXPECT_EQ(explain("0", scores, exact, {0, 0}, {0, 0}), Explanation::found);
  EXPECT_EQ(explain("0", {5, 3}, {0, 0}, {1, 1}, {1, 1}), Explanation::found) << "all are among the largest";
  EXPECT_EQ(explain("0", scores, exact, {0, 0}, {1, -1}), Explanation::none);
}

TEST(AllocationExplanation, OfScoresNextToEachOtherIsEitherHeads) {
  // The third largest score is 7 or, with errors of half a unit, 6.5.
  const std::vector<double> scores{9, 8, 1, 2, 7, 6.5}, half(6, 0.5), little(6, 0.125);
  EXPECT_EQ(explain("0", {9, 8, 6.5, 2, 7, 3}, half, {1, 2}, {3, 0}), Explanation::found);
  EXPECT_EQ(explain("0", {9, 8, 6.5, 2, 7, 3}, little, {1, 2}, {3, 0}), Explanation::none);
  EXPECT_EQ(explain("0", scores, half, {1, 2}, {1, 2}), Explanation::none) << "8 is not next to 6.5";
  EXPECT_EQ(explain("0", scores, std::vector<double>(6, 0.75), {1, 2}, {1, 2}), Explanation::found);
}

TEST(AllocationExplanation, ReachesAcrossHeadsAsFarAsErrorsDo) {
  // Head 0's 3 may be among the two largest instead of the other head's 4.
  const std::vector<double> scores{5, 3, 4, 0}, errors{0.75, 0.75, 0.75, 0};
  EXPECT_EQ(explain("0", scores, errors, {1, 1}, {1, 1}), Explanation::found);
  EXPECT_EQ(explain("0", scores, errors, {1, 1}, {2, 0}), Explanation::found) << "5 and 3 rather than 4";
  EXPECT_EQ(explain("0", scores, {0.25, 0.25, 0.25, 0}, {1, 1}, {2, 0}), Explanation::none);
}

TEST(AllocationExplanation, IsUnknownWhereErrorsAreInfiniteOrRankingsTooMany) {
  EXPECT_EQ(explain("0", {1, 2}, {0, kInfinity}, {1, 0}, {1, 0}), Explanation::unknown);
  // Eight heads of equal scores and hardly any budget to win: too many rankings explain the allocation.
  const std::vector<double> scores(8 * 40, 1.0), errors(8 * 40, 0.5);
  Counts shared(8, 20);
  shared[0] = 21;
  shared[7] = 19;
  EXPECT_EQ(explain("0.99", scores, errors, Counts(8, 20), shared), Explanation::unknown);
}

RC_GTEST_PROP(AllocationExplanation, IsNeverNoneForWhoIsHonestAboutScoresWithinTheirErrors, ()) {
  const int64_t heads = *integer(1, 4), candidates = *integer(1, 8);
  std::vector<double> scores, errors;
  Matrix theirs(heads, candidates);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < candidates; ++i) {
      scores.push_back(static_cast<double>(*integer(0, 20)));
      errors.push_back(0.25 * static_cast<double>(*integer(0, 8)));
      theirs(h, i) = scores.back() + errors.back() * 0.25 * static_cast<double>(*integer(-4, 4));
    }
  }
  const Counts counts(static_cast<size_t>(heads), *integer(0, candidates));
  const AdaKv options = adakv(std::vector<std::string>{"0", "0.2", "0.5", "1"}[*integer(0, 3)]);
  const Counts shared = reference::adakv_budgets(options, theirs, counts);
  const Explanation explanation = sim::explain(options, {scores, errors}, counts, shared);
  RC_CLASSIFY(
      shared == reference::adakv_budgets(options, MatrixView(scores.data(), heads, candidates), counts),
      "the reference's");
  RC_ASSERT(explanation == Explanation::found);
}

constexpr double kTie = 1 + 1e-8;  // equal to 1 in single precision, but not in double precision

// Two KV heads with four candidates each and one always-kept entry. Three of the four largest weights are
// head 0's; the least of these nearly ties with a weight of head 1.
AllocationJudgement judged(const std::string& policy, const Counts& kept,
                           const reference::Arithmetic& arithmetic) {
  const traces::Layer layer = test::weighted_layer(5, {{9, 8, 4 * kTie, 1, 1}, {9, 4, 3, 3, 4}});
  const TestedImplementation implementation{parse_policy(policy), 3, 0, arithmetic, Dtype::f64};
  std::vector<Counts> sets;
  for (const int64_t count : kept) sets.emplace_back(static_cast<size_t>(count));
  return judge_allocation(layer.prompt(), implementation, sets.empty() ? nullptr : &sets);
}

const std::string kAdaKv = "h2o:window=1:recent=1+adakv:safeguard=0";

TEST(Allocation, FollowsWhatIsClaimedOnlyWhereRoundingExplainsIt) {
  const reference::Arithmetic exact = reference::double_precision(), single = reference::single_precision();
  const Counts own{4, 2}, tied{3, 3}, wrong{5, 1};
  for (const reference::Arithmetic& arithmetic : {exact, single}) {
    EXPECT_EQ(judged(kAdaKv, {}, arithmetic).budgets, own);
    EXPECT_EQ(judged(kAdaKv, own, arithmetic).budgets, own);
    EXPECT_EQ(judged(kAdaKv, own, arithmetic).near_tie_swaps, 0);
    const AllocationJudgement rejected = judged(kAdaKv, wrong, arithmetic);
    EXPECT_EQ(rejected.budgets, own) << "the reference's";
    EXPECT_EQ(rejected.near_tie_swaps + rejected.undecided, 0);
  }
  EXPECT_EQ(judged(kAdaKv, tied, single).budgets, tied);
  EXPECT_EQ(judged(kAdaKv, tied, single).near_tie_swaps, 1) << "one entry is another head's";
  EXPECT_EQ(judged(kAdaKv, tied, exact).budgets, own);
  EXPECT_EQ(judged(kAdaKv, tied, exact).near_tie_swaps, 0);
}

TEST(Allocation, IsTheBudgetForAllHeadsWithoutAdaKv) {
  for (const char* policy : {"h2o:window=1:recent=1", "h2o:window=1:recent=1+pyramid"}) {
    const AllocationJudgement found = judged(policy, {4, 2}, reference::double_precision());
    EXPECT_EQ(found.budgets, (Counts{3, 3}));
    EXPECT_EQ(found.near_tie_swaps, 0);
  }
}

}  // namespace
}  // namespace kvbound::sim::allocation_test
