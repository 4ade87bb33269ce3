#include <algorithm>
#include <functional>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/sim/diff/judge/swept_selections.hpp>

namespace kvbound::sim::swept_selections_test {
namespace {

using Positions = std::vector<int64_t>;

// A selection of two of some candidates by scores with one error for all.
struct Scores {
  Scores(std::vector<double> scores_, double error)
      : scores(std::move(scores_)), errors(scores.size(), error) {}
  SweptSelection selection() const { return swept_top_k({scores, errors}, 2); }

  std::vector<double> scores, errors;
};

// The sum of the candidates' numbers, with an error.
std::function<UncertainNumber(const Positions&)> bound_of(const std::vector<double>& numbers, double error) {
  return [numbers, error](const Positions& set) {
    UncertainNumber sum{0, error};
    for (const int64_t i : set) sum.value += numbers[i];
    return sum;
  };
}

// Two selections: one takes {0, 1}, with the bound 7; the other {2, 3} with the bound 3, unless
// rounding lets it take {3, 4}.
const Scores kFirst({9, 8, 1, 1, 1}, 0.01);
const std::vector<double> kBounds{3, 4, 1, 2, 9};
const Positions kOwn{2, 3}, kClaimed{0, 1};

SweepJudgement judge(const Scores& second, const std::vector<double>& bounds = kBounds, double error = 0) {
  return judge_sweep({kFirst.selection(), second.selection()}, bound_of(bounds, error), kOwn, kClaimed);
}

TEST(SweptSelections, AreWrongIfAnotherIsSurelyBetter) {
  const SweepJudgement found = judge(Scores({1, 1, 8, 9, 7}, 0.01));
  ASSERT_TRUE(found.fault);
  EXPECT_EQ(found.fault->by, std::string("bound of the whole selection"));
  EXPECT_EQ(found.fault->chosen, 0);
  EXPECT_EQ(found.fault->better, 2);
  EXPECT_EQ(found.fault->chosen_score, 7);
  EXPECT_EQ(found.fault->better_score, 3);
  EXPECT_EQ(found.fault->faulty, 2);
}

TEST(SweptSelections, AreRightIfRoundingMayHaveMadeAnotherWorse) {
  const Scores tie({1, 1, 8, 9, 7.99}, 0.01);
  EXPECT_EQ(tie.selection().open, (Positions{2, 4}));
  const SweepJudgement found = judge(tie);
  EXPECT_FALSE(found.fault) << "the other may be {3, 4}, with the bound 11";
  EXPECT_FALSE(found.undecided);
  EXPECT_TRUE(judge(tie, {3, 4, 1, 2, 3}).fault) << "of {3, 4}, too, the bound is smaller: 5";
  EXPECT_TRUE(judge(Scores({1, 1, 8, 9, 7.97}, 0.01)).fault) << "the errors together are less than .03";
}

// Of four that follow each other closely the first surely beats the last, which is therefore
// never selected without it.
TEST(SweptSelections, TryOnlySetsThatRoundingAllows) {
  const Scores first({9, 8, 1, 1, 1, 1}, 0.01), chain({1, 1, 8, 7.99, 7.985, 7.975}, 0.01);
  EXPECT_EQ(chain.selection().open, (Positions{2, 3, 4, 5}));
  const auto judged = [&](const std::vector<double>& bounds) {
    return judge_sweep({first.selection(), chain.selection()}, bound_of(bounds, 0), kOwn, kClaimed);
  };
  EXPECT_TRUE(judged({3, 4, -100, 1, 1, 50}).fault);
  EXPECT_FALSE(judged({3, 4, -10, 1, 1, 50}).fault) << "the first and the last";
}

TEST(SweptSelections, AreRightIfTheErrorsOfTheirBoundsExplainThem) {
  const Scores second({1, 1, 8, 9, 7}, 0.01);
  EXPECT_FALSE(judge(second, kBounds, 2.1).fault) << "7 - 3 is less than the sum of both errors";
  EXPECT_TRUE(judge(second, kBounds, 1.9).fault);
}

TEST(SweptSelections, AreWrongIfNoneOfThemIsTheClaimedSet) {
  const SweepJudgement found = judge_sweep({kFirst.selection(), Scores({1, 1, 8, 9, 7}, 0.01).selection()},
                                           bound_of({1, 9, 9, 9, 1}, 0), kOwn, {0, 4});
  ASSERT_TRUE(found.fault) << "though its bound is the least";
  EXPECT_EQ(found.fault->by, std::string("score of the nearest mixture"));
  EXPECT_EQ(found.fault->chosen, 4) << "candidate 0 is in the nearest one";
  EXPECT_EQ(found.fault->faulty, 2);
}

TEST(SweptSelections, AreUndecidedIfAnotherHasTooManyPossibilities) {
  std::vector<double> scores(100, 5.0), bounds(100, 1.0);
  scores[0] = scores[1] = 0;
  bounds[0] = bounds[1] = 9;
  const Scores ties(scores, 1);
  EXPECT_EQ(ties.selection().open.size(), 98u);
  std::vector<double> first(100, 0.0);
  first[0] = first[1] = 9;
  const SweepJudgement found =
      judge_sweep({Scores(first, 0.01).selection(), ties.selection()}, bound_of(bounds, 0), {2, 3}, {0, 1});
  EXPECT_FALSE(found.fault);
  EXPECT_TRUE(found.undecided);
}

// With a stage one of one candidate, the other is chosen by the second score.
TEST(SweptSelections, KnowWhatRoundingDecidesInBothStages) {
  const std::vector<double> errors(5, 0.01);
  const auto open = [&](const std::vector<double>& one, const std::vector<double>& two,
                        const CountRange& counts) {
    return swept_critical({one, errors}, {two, errors}, 2, counts).open;
  };
  const std::vector<double> certain{9, 8, 7, 6, 5}, other{1, 2, 3, 9, 4};
  EXPECT_EQ(swept_critical({certain, errors}, {other, errors}, 2, {1, 1}).own, (Positions{0, 3}));
  EXPECT_EQ(open(certain, other, {1, 1}), Positions{});
  EXPECT_EQ(open(certain, {1, 2, 3, 9, 8.99}, {1, 1}), (Positions{3, 4}));
  EXPECT_EQ(open({9, 8.99, 7, 6, 5}, other, {1, 1}), (Positions{0, 1, 4}))
      << "4 follows 3, if stage one is left";
  EXPECT_EQ(open(certain, {1, 9, 3, 9, 4}, {1, 1}), (Positions{1, 3}));
  EXPECT_EQ(open(certain, other, {1, 2}), (Positions{1, 3})) << "stage one may hold both";
}

}  // namespace
}  // namespace kvbound::sim::swept_selections_test
