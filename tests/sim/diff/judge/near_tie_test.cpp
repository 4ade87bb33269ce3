#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/sim/diff/judge/near_tie.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::near_tie_test {
namespace {

using Positions = std::vector<int64_t>;

struct Scores {
  std::vector<double> values, errors;
  operator UncertainScores() const { return {values, errors}; }
};

Scores with_error(const std::vector<double>& values, double error) {
  return {values, std::vector<double>(values.size(), error)};
}

// Numbers drawn uniformly within the scores' errors.
std::vector<double> perturbed(const Scores& scores, test::Random& random) {
  std::vector<double> result = scores.values;
  for (size_t i = 0; i < result.size(); ++i) result[i] += random.uniform(-1, 1) * scores.errors[i];
  return result;
}

Scores random_scores(test::Random& random, int64_t count) {
  Scores scores;
  for (int64_t i = 0; i < count; ++i) {
    scores.values.push_back(static_cast<double>(random.index(6)) / 4 + 0.01 * random.uniform(0, 1));
    scores.errors.push_back(random.index(3) == 0 ? 0.3 * random.uniform(0, 1) : 0.01);
  }
  return scores;
}

TEST(TopKFault, IsNoneForTheReferencesOwnChoice) {
  EXPECT_FALSE(top_k_fault(with_error({3, 1, 2, 1}, 0), Positions{0, 2}));
  EXPECT_FALSE(top_k_fault(with_error({3, 1, 2, 1}, 0), Positions{0, 2, 3})) << "ties may go either way";
  EXPECT_FALSE(top_k_fault(with_error({3, 1}, 0), Positions{}));
  EXPECT_FALSE(top_k_fault(with_error({3, 1}, 0), Positions{0, 1}));
}

TEST(TopKFault, NamesTheClearlyBetterEntry) {
  const auto fault = top_k_fault(with_error({3, 1, 2, 1.5}, 0.25), Positions{0, 1, 3});
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->better, 2);
  EXPECT_EQ(fault->chosen, 1);
  EXPECT_EQ(fault->excess(), 1);
  EXPECT_EQ(fault->band, 0.5);
  EXPECT_EQ(fault->faulty, 1) << "entry 3 is a near tie";
}

TEST(TopKFault, CountsWhoHasNoPlace) {
  EXPECT_EQ(top_k_fault(with_error({9, 8, 7, 1, 2}, 0.1), Positions{1, 2, 3})->faulty, 1)
      << "7 and 8 belong there";
  EXPECT_EQ(top_k_fault(with_error({9, 8, 7, 1, 2}, 0.1), Positions{2, 3, 4})->faulty, 2);
  EXPECT_EQ(top_k_fault(Scores{{5, 4.5, 4}, {0, 3, 0.1}}, Positions{1, 2})->faulty, 1);
}

TEST(TopKFault, AllowsADifferenceOfBothErrorsAndNoMore) {
  EXPECT_FALSE(top_k_fault(with_error({1.5, 1}, 0.25), Positions{1}));
  EXPECT_TRUE(top_k_fault(with_error({1.5, 1}, 0.2499), Positions{1}));
  EXPECT_FALSE(top_k_fault(Scores{{1.5, 1}, {0.5, 0}}, Positions{1})) << "errors may be one's alone";
}

TEST(TopKFault, KnowsInfiniteScoresAndErrors) {
  EXPECT_FALSE(top_k_fault(Scores{{kInfinity, kInfinity, 1}, {0, 0, 0}}, Positions{1}));
  EXPECT_TRUE(top_k_fault(Scores{{kInfinity, kInfinity, 1}, {0, 0, 0}}, Positions{2}));
  EXPECT_FALSE(top_k_fault(Scores{{9, 1}, {kInfinity, 0}}, Positions{1})) << "nothing is known of score 0";
}

RC_GTEST_PROP(TopKFault, IsNoneForTheTopKOfScoresWithinTheirErrors, ()) {
  test::Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const int64_t count = 1 + random.index(12);
  const Scores scores = random_scores(random, count);
  const Positions selected = reference::select_top(perturbed(scores, random), random.index(count + 1));
  RC_ASSERT(!top_k_fault(scores, selected));
}

TEST(CriticalFault, AllowsWhatOnlyStageOneExplains) {
  const Scores attention = with_error({9, 8, 1, 1, 1}, 0.1), stage_two = with_error({0, 0, 3, 2, 1}, 0.1);
  EXPECT_FALSE(critical_fault(attention, stage_two, Positions{0, 1, 2}, 2));
  EXPECT_FALSE(critical_fault(attention, stage_two, Positions{0, 2, 3}, 1));
  const auto too_few = critical_fault(attention, stage_two, Positions{0, 1, 2}, 1);
  ASSERT_TRUE(too_few);
  EXPECT_EQ(too_few->by, "stage-two score");
  EXPECT_EQ(too_few->chosen, 1) << "entry 0 is stage one's";
  EXPECT_EQ(too_few->better, 3);
}

TEST(CriticalFault, FindsAStageOneThatAttentionDoesNotAllow) {
  const Scores attention = with_error({9, 8, 1, 1, 1}, 0.1), stage_two = with_error({0, 0, 3, 2, 1}, 0.1);
  const auto fault = critical_fault(attention, stage_two, Positions{1, 2, 3}, 1);
  ASSERT_TRUE(fault) << "entry 0 should have been stage one's";
  EXPECT_EQ(fault->by, "attention score");
  EXPECT_EQ(fault->chosen, 1);
  EXPECT_EQ(fault->better, 0);
  EXPECT_FALSE(critical_fault(with_error({9, 8, 1, 1, 1}, 0.5), stage_two, Positions{1, 2, 3}, 1))
      << "a near tie";
}

TEST(CriticalFault, OfOneStageAloneIsThatOfTopK) {
  const Scores attention = with_error({3, 1, 2}, 0.1), stage_two = with_error({1, 2, 3}, 0.1);
  EXPECT_FALSE(critical_fault(attention, stage_two, Positions{0, 2}, 2));
  EXPECT_TRUE(critical_fault(attention, stage_two, Positions{1, 2}, 2));
  EXPECT_FALSE(critical_fault(attention, stage_two, Positions{1, 2}, 0));
  EXPECT_TRUE(critical_fault(attention, stage_two, Positions{0, 2}, 0));
}

TEST(CriticalFault, PutsAnEntryOfWideErrorIntoStageOneIfThatIsTheOnlyWay) {
  // Entry 1 beats entry 0 at the lower end of entry 0's attention, but entry 2, which is left
  // out, clearly beats entry
  // 1. So entry 0, whose attention may be anything, must be stage one, and 1 stage two.
  const Scores attention{{1, 1.5, 2}, {5, 0, 0}}, stage_two = with_error({4, 4, 1}, 0);
  EXPECT_FALSE(critical_fault(attention, stage_two, Positions{0, 1}, 1));
}

TEST(CriticalFault, OfSeveralSizesIsNoneIfOneOfThemAllowsTheSelection) {
  const Scores attention = with_error({9, 8, 1, 1, 1}, 0.1), stage_two = with_error({0, 0, 3, 2, 1}, 0.1);
  EXPECT_FALSE(critical_fault(attention, stage_two, Positions{0, 1, 2}, CountRange{0, 2}));
  const auto fault = critical_fault(attention, stage_two, Positions{0, 1, 2}, CountRange{0, 1});
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->faulty, 1) << "of two entries with no place and of one, the one";
  EXPECT_EQ(fault->chosen, 1);
}

TEST(Separates, AsksWhetherTheBestIsSurelyAboveTheWorst) {
  EXPECT_TRUE(separates(with_error({1, 2, 1.5}, 0.49)));
  EXPECT_FALSE(separates(with_error({1, 2, 1.5}, 0.5)));
  EXPECT_FALSE(separates(Scores{{1, 9}, {0, kInfinity}})) << "nothing is known of the best";
  EXPECT_FALSE(separates(with_error({1}, 0.1)));
}

TEST(CountRange, OfSeveralQueriesIsOfTheMostDemanding) {
  const CountRange both = CountRange::most({1, 5}, {2, 3});
  EXPECT_EQ(both.first, 2);
  EXPECT_EQ(both.last, 5);
}

RC_GTEST_PROP(CriticalFault, IsNoneForBothStagesOnScoresWithinTheirErrors, ()) {
  test::Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const int64_t count = 1 + random.index(12), k = random.index(count + 1), stage_one = random.index(k + 1);
  const Scores attention = random_scores(random, count), stage_two = random_scores(random, count);
  const Positions selected =
      reference::select_critical(perturbed(attention, random), perturbed(stage_two, random), k, stage_one)
          .selected;
  RC_ASSERT(!critical_fault(attention, stage_two, selected, stage_one));
}

// Whether any stage one, of all subsets, explains the selection.
bool explained(const Scores& attention, const Scores& stage_two, const Positions& selected,
               int64_t stage_one) {
  const auto is_clearly_better = [](const Scores& scores, int64_t i, int64_t j) {
    const auto a = static_cast<size_t>(i), b = static_cast<size_t>(j);
    return scores.values[a] - scores.errors[a] > scores.values[b] + scores.errors[b];
  };
  const auto count = std::ssize(attention.values);
  for (unsigned subset = 0; subset < 1u << selected.size(); ++subset) {
    if (__builtin_popcount(subset) != stage_one) continue;
    std::vector<bool> first(attention.values.size()), chosen(first.size());
    for (size_t s = 0; s < selected.size(); ++s) {
      chosen[selected[s]] = true;
      first[selected[s]] = subset >> s & 1;
    }
    bool legal = true;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < count; ++j) {
        const bool i_first = first[i], j_first = first[j];
        if (j_first && !i_first && is_clearly_better(attention, i, j)) legal = false;
        if (chosen[j] && !j_first && !chosen[i] && is_clearly_better(stage_two, i, j)) {
          legal = false;
        }
      }
    }
    if (legal) return true;
  }
  return false;
}

RC_GTEST_PROP(CriticalFault, IsThereExactlyIfNoStageOneOfAllExplainsTheSelection, ()) {
  test::Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const int64_t count = 1 + random.index(8), k = random.index(count + 1), stage_one = random.index(k + 1);
  const Scores attention = random_scores(random, count), stage_two = random_scores(random, count);
  // Half of the selections are nearly right, so that both outcomes are frequent.
  const Positions selected =
      random.index(2) == 0
          ? random.subset(count, k)
          : reference::select_critical(perturbed(attention, random), stage_two.values, k, stage_one).selected;
  const bool legal = !critical_fault(attention, stage_two, selected, stage_one);
  RC_CLASSIFY(legal);
  RC_ASSERT(legal == explained(attention, stage_two, selected, stage_one));
}

TEST(RankRanges, AreTheNumbersOfEntriesThatAreAndThatMayBeBetter) {
  const auto ranks = rank_ranges(with_error({5, 3, 3.1, 1}, 0.1));
  EXPECT_EQ(ranks[0].best, 1);
  EXPECT_EQ(ranks[0].worst, 1);
  EXPECT_EQ(ranks[1].best, 2);
  EXPECT_EQ(ranks[1].worst, 3);
  EXPECT_EQ(ranks[2].best, 2);
  EXPECT_EQ(ranks[2].worst, 3);
  EXPECT_EQ(ranks[3].best, 4);
  EXPECT_EQ(ranks[3].worst, 4);
}

TEST(AdaptiveCounts, AreOneWhereNothingIsUncertain) {
  const std::vector<double> weights{0.2, 0.3, 0.1, 0.3, 0.1}, none(5);
  const auto ranks = rank_ranges(with_error({2, 3, 1, 4}, 0));
  const CountRange counts = adaptive_counts(weights, none, Positions{4}, Positions{0, 1, 2, 3}, ranks, 3, 0);
  EXPECT_EQ(counts.first, 2) << "0.1 + 0.3 + 0.3 > 1/2";
  EXPECT_EQ(counts.last, 2);
}

TEST(AdaptiveCounts, SpanWhatMassesAndRanksAllow) {
  const std::vector<double> weights{0.2, 0.3, 0.1, 0.3, 0.1}, errors(5, 0.06);
  const auto ranks = rank_ranges(with_error({2, 3, 1, 4}, 0));
  const CountRange counts =
      adaptive_counts(weights, errors, Positions{4}, Positions{0, 1, 2, 3}, ranks, 3, 0);
  EXPECT_EQ(counts.first, 1) << "0.1 + 0.3 + 2 * 0.06 > 1/2";
  EXPECT_EQ(counts.last, 2) << "0.7 - 3 * 0.06 > 1/2";
  const auto tied = rank_ranges(with_error({2, 2, 2, 2}, 0));
  const CountRange any =
      adaptive_counts(weights, std::vector<double>(5), Positions{4}, Positions{0, 1, 2, 3}, tied, 3, 0);
  EXPECT_EQ(any.first, 1) << "all four may be the first";
  EXPECT_EQ(any.last, 3) << "none is surely among the first three";
}

RC_GTEST_PROP(AdaptiveCounts, HoldTheCountOfAnyWeightsAndScoresWithinTheirErrors, ()) {
  test::Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const int64_t candidates = 1 + random.index(10), tokens = candidates + 2;
  Scores weights;
  for (int64_t i = 0; i < tokens; ++i) weights.values.push_back(random.uniform(0, 1));
  const double sum = std::accumulate(weights.values.begin(), weights.values.end(), 0.0);
  for (double& weight : weights.values) {
    weight /= sum;
    weights.errors.push_back(0.02 * random.uniform(0, 1) * weight);
  }
  const Scores scores = random_scores(random, candidates);
  Positions places(candidates), always_kept{candidates, candidates + 1};
  std::iota(places.begin(), places.end(), 0);
  const int64_t k = random.index(candidates + 1);
  const Positions ranked = reference::rank_top(perturbed(scores, random), k);
  const std::vector<double> theirs = perturbed(weights, random);
  const int64_t count =
      reference::adaptive_stage_one(MatrixView(theirs.data(), 1, tokens), always_kept, ranked);
  const CountRange range =
      adaptive_counts(weights.values, weights.errors, always_kept, places, rank_ranges(scores), k, 1e-14);
  RC_ASSERT(range.first <= count);
  RC_ASSERT(count <= range.last);
}

}  // namespace
}  // namespace kvbound::sim::near_tie_test
