#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/draw.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/diff/judge/kept_sets.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/session_cases.hpp"
#include "support/trace_layer.hpp"

namespace kvbound::sim::kept_sets_test {
namespace {

const auto* const kOneThread = testing::AddGlobalTestEnvironment(new test::OneThread);

using reference::Arithmetic;
using test::Positions;

// A tested implementation, and the reference's record of the prompt.
struct Case {
  Case(traces::Layer layer_, const std::string& policy, int64_t budget,
       const Arithmetic& arithmetic = reference::double_precision())
      : layer(std::move(layer_)),
        implementation{parse_policy(policy), budget, 0, arithmetic, Dtype::f64},
        record(reference::make_session()->compress(layer.prompt(), implementation.policy,
                                                   Positions(layer.shape.kv_heads, budget))),
        errors(layer.prompt(), implementation, record) {}

  TensorAgreement judge(const std::vector<Positions>& kept,
                        const std::optional<Positions>& target_of = std::nullopt) {
    teacher_forced = record.kept;
    return judge_kept(layer.prompt(), implementation, record, errors, kept, target_of, teacher_forced);
  }

  traces::Layer layer;
  TestedImplementation implementation;
  PromptRecord record;
  PromptErrors errors;
  std::vector<Positions> teacher_forced;
};

const std::string kHost = "h2o:window=1:recent=1";  // the last position is always kept
constexpr double kTie = 1 + 1e-8;  // equal to 1 in single precision, but not in double precision

TEST(KeptSets, AcceptsAnotherEntryOnlyWhereRoundingExplainsIt) {
  const traces::Layer layer = test::weighted_layer(6, {{8, 1, 4, 4 * kTie, 2, 1}});
  Case exact(layer, kHost, 3), single(layer, kHost, 3, reference::single_precision());
  ASSERT_EQ(exact.record.kept.front(), (Positions{0, 3, 5}));
  const TensorAgreement tie = single.judge({{0, 2, 5}});
  EXPECT_EQ(tie.outside, 0);
  EXPECT_EQ(tie.near_tie_swaps, 1);
  EXPECT_EQ(tie.judged, 3);
  EXPECT_EQ(single.teacher_forced.front(), (Positions{0, 2, 5}));
  const TensorAgreement wrong = exact.judge({{0, 2, 5}});
  EXPECT_EQ(wrong.outside, 1);
  EXPECT_EQ(wrong.near_tie_swaps, 0);
  EXPECT_EQ(wrong.worst.value().index, Positions{1});
  EXPECT_EQ(
      wrong.worst.value().note.rfind("KV head 0 kept position 2 rather than 3, by score: 0.2 against", 0), 0)
      << wrong.worst.value().note;
  EXPECT_NEAR(wrong.worst.value().error, 4 * 1e-8 / 20, 1e-14);
}

TEST(KeptSets, CountsTheEntriesThatHaveNoPlace) {
  const traces::Layer layer = test::weighted_layer(6, {{8, 1, 4, 4 * kTie, 2, 1}, {1, 8, 1, 4, 2, 1}});
  for (const Arithmetic& arithmetic : {reference::double_precision(), reference::single_precision()}) {
    Case given(layer, kHost, 3, arithmetic);
    const TensorAgreement one = given.judge({{0, 4, 5}, {1, 3, 5}});
    EXPECT_EQ(one.outside, 1);
    EXPECT_EQ(one.worst.value().claimed, 4);
    EXPECT_EQ(one.outside_at, Positions{1});
    EXPECT_EQ(one.elements, 6);
    EXPECT_EQ(one.judged, 6);
    const TensorAgreement two = given.judge({{0, 3, 5}, {0, 2, 5}});
    EXPECT_EQ(two.outside, 2);
    EXPECT_EQ(two.worst.value().index, Positions{3}) << "of all heads' entries, head by head";
    EXPECT_EQ(two.worst.value().note.rfind("KV head 1 kept position 0 rather than 1", 0), 0)
        << two.worst.value().note;
  }
}

TEST(KeptSets, NamesPositionsAndNotCandidates) {
  Case given(test::weighted_layer(6, {{1, 1, 1, 8, 4, 1}}), "h2o:window=1:sinks=2:recent=1", 4);
  const TensorAgreement found = given.judge({{0, 1, 2, 5}});
  EXPECT_EQ(found.outside, 1);
  EXPECT_EQ(found.worst.value().claimed, 2);
  EXPECT_EQ(found.worst.value().expected, 3);
  EXPECT_EQ(found.worst.value().index, Positions{2});
  EXPECT_TRUE(given.judge({{0, 1, 3, 5}}).agrees());
}

TEST(KeptSets, AcceptsOnlyTheReferencesOwnDraws) {
  traces::Layer layer = test::weighted_layer(9, {std::vector<double>(9, 1), std::vector<double>(9, 1)});
  layer.index = 3;
  Case given(layer, "random:seed=9:sinks=2:window=1", 6, reference::single_precision());
  const std::vector<Positions> own = given.record.kept;
  const TensorAgreement right = given.judge(own);
  EXPECT_TRUE(right.agrees());
  EXPECT_EQ(right.judged, 12);
  for (const int64_t seed : {8, 10}) {
    Case other(layer, "random:seed=" + std::to_string(seed) + ":sinks=2:window=1", 6);
    EXPECT_FALSE(given.judge(other.record.kept).agrees());
  }
  layer.index = 2;
  EXPECT_FALSE(given.judge(Case(layer, "random:seed=9:sinks=2:window=1", 6).record.kept).agrees());
  EXPECT_FALSE(given.judge({own[1], own[0]}).agrees()) << "the draws of the other KV head";
  // One entry is exchanged: both draws are in the note.
  Positions wrong = own[1], others;
  std::ranges::set_difference(test::range(0, 9), own[1], std::back_inserter(others));
  wrong[2] = others.front();
  std::ranges::sort(wrong);
  const TensorAgreement found = given.judge({own[0], wrong});
  EXPECT_EQ(found.outside, 1);
  EXPECT_EQ(found.judged, 12);
  EXPECT_EQ(found.near_tie_swaps, 0);
  const std::string note = "KV head 1 kept position " + std::to_string(others.front()) + " rather than " +
                           std::to_string(own[1][2]) + ", by draw: ";
  EXPECT_EQ(found.worst.value().note.rfind(note, 0), 0) << found.worst.value().note;
  EXPECT_EQ(found.worst.value().expected, static_cast<double>(own[1][2]));
  const DrawSeed seed{9, 3, 1};
  const double difference = std::ldexp(static_cast<double>(seed.draw_of(others.front())), -64) -
                            std::ldexp(static_cast<double>(seed.draw_of(own[1][2])), -64);
  EXPECT_GT(difference, 0) << "smaller draws are kept";
  EXPECT_NEAR(found.worst.value().error, difference, 1e-15);
  EXPECT_EQ(given.teacher_forced[1], wrong);
  EXPECT_EQ(given.judge({own[0], {0, 1, others[0], others[1], others[2], 8}}).outside, 3);
}

TEST(KeptSets, FollowsASetOfPositionsHoweverWrongAndNoOtherList) {
  Case given(test::weighted_layer(6, {{8, 1, 4, 3, 2, 1}}), kHost, 3);
  const Positions own = given.record.kept.front();
  for (const Positions& usable : {Positions{1, 4, 5}, Positions{0, 5}, Positions{0, 2, 3}}) {
    EXPECT_GT(given.judge({usable}).outside, 0);
    EXPECT_EQ(given.teacher_forced.front(), usable);
  }
  for (const Positions& unusable :
       {Positions{}, Positions{0, 2, 6}, Positions{-1, 0, 5}, Positions{2, 0, 5}, Positions{0, 0, 5}}) {
    EXPECT_EQ(given.judge({unusable}).outside, 1);
    EXPECT_EQ(given.teacher_forced.front(), own);
  }
  const TensorAgreement evicted = given.judge({{0, 2, 3}});
  EXPECT_EQ(evicted.worst.value().note, "KV head 0: position 5 is missing, which is always kept");
  EXPECT_EQ(evicted.judged, 3);
}

TEST(KeptSets, SaysNothingWhereBoundsTellNoCandidateFromAnother) {
  Case equal(test::weighted_layer(6, {{1, 1, 1, 1, 1, 1}}), kHost, 3);
  const TensorAgreement found = equal.judge({{3, 4, 5}});
  EXPECT_EQ(found.outside, 0);
  EXPECT_EQ(found.near_tie_swaps, 2);
  EXPECT_EQ(found.elements, 3);
  EXPECT_EQ(found.judged, 0);
  EXPECT_EQ(Case(test::weighted_layer(6, {{1, 1, 1, 1, 1, 1}}), kHost, 6).judge({{0, 1, 2, 3, 4, 5}}).judged,
            6)
      << "all are kept";
}

const std::string kCritical = kHost + "+critical:epsilon=0";

TEST(KeptSets, JudgesEachOfTheTwoStagesByItsOwnScore) {
  // Stage one takes entry 0, stage two entries 1 and 3.
  const traces::Layer layer = test::weighted_layer(6, {{8, 1, 1, 1, 1, 1}}, {{0.01, 5, 4, 4 * kTie, 1, 1}});
  Case exact(layer, kCritical, 4), single(layer, kCritical, 4, reference::single_precision());
  ASSERT_EQ(exact.record.kept.front(), (Positions{0, 1, 3, 5}));
  const TensorAgreement tie = single.judge({{0, 1, 2, 5}});
  EXPECT_EQ(tie.outside, 0);
  EXPECT_EQ(tie.near_tie_swaps, 1);
  EXPECT_EQ(exact.judge({{0, 1, 2, 5}}).outside, 1);
  for (Case* given : {&exact, &single}) {
    const TensorAgreement second = given->judge({{0, 2, 3, 5}});
    EXPECT_EQ(second.outside, 1);
    EXPECT_NE(second.worst.value().note.find("by stage-two score"), std::string::npos)
        << second.worst.value().note;
    EXPECT_EQ(second.worst.value().expected, 1);
    const TensorAgreement first = given->judge({{1, 2, 3, 5}});
    EXPECT_EQ(first.outside, 1);
    EXPECT_NE(first.worst.value().note.find("rather than 0, by attention score"), std::string::npos)
        << first.worst.value().note;
  }
}

TEST(KeptSets, AllowsAStageOneOfEitherSizeWhereItsMassIsAHalf) {
  const Positions one{0, 3, 4, 5}, two{0, 1, 3, 5};  // with a stage one of {0}, and of {0, 1}
  const auto judge = [&](double weight, const Positions& kept) {
    // With the always-kept last entry, whose weight is 1, entry 0 has half of the mass if its weight is 4.
    Case given(test::weighted_layer(6, {{weight, 2, 1.5, 1, 0.5, 1}}, {{1, 0.1, 1, 10, 10, 1}}),
               kCritical + ":alpha=adaptive", 4);
    return given.judge({kept}).outside;
  };
  EXPECT_EQ(judge(4, one), 0);
  EXPECT_EQ(judge(4, two), 0);
  EXPECT_EQ(judge(4.5, one), 0);
  EXPECT_EQ(judge(4.5, two), 1) << "entry 1 has no place: stage one is entry 0 alone";
  EXPECT_EQ(judge(3.5, one), 1) << "entry 1 is of stage one";
  EXPECT_EQ(judge(3.5, two), 0);
}

TEST(KeptSets, JudgesAThetaSweepByItsMixturesAndTheirBounds) {
  const traces::Layer layer = test::weighted_layer(6, {{8, 4, 2, 1, 1, 1}});
  Case given(layer, kHost + "+theta-sweep", 3);
  ASSERT_EQ(given.record.kept.front(), (Positions{0, 1, 5}));
  EXPECT_EQ(given.judge({{0, 1, 5}}).outside, 0);
  const TensorAgreement wrong = given.judge({{2, 3, 5}});
  EXPECT_EQ(wrong.outside, 2) << "two of them are not of the best set";
  EXPECT_NE(wrong.worst.value().note.find("by score of the nearest mixture"), std::string::npos)
      << wrong.worst.value().note;
  // Entry 2 is worth more by its norm alone, which the mixtures of small lambda prefer; the
  // bound of that set is larger.
  Case norms(test::weighted_layer(6, {{8, 4, 2, 1, 1, 1}}, {{1, 1, 3, 1, 1, 1}}), kHost + "+theta-sweep", 3);
  const Positions own = norms.record.kept.front(),
                  other = own == Positions{0, 1, 5} ? Positions{0, 2, 5} : Positions{0, 1, 5};
  const TensorAgreement worse = norms.judge({other});
  EXPECT_EQ(worse.outside, 1);
  EXPECT_NE(worse.worst.value().note.find("by bound of the whole selection"), std::string::npos)
      << worse.worst.value().note;
  Case ties(test::weighted_layer(6, {{8, 4, 4 * kTie, 1, 1, 1}}), kHost + "+theta-sweep", 3,
            reference::single_precision());
  EXPECT_EQ(ties.judge({{0, 1, 5}}).near_tie_swaps, 1);
  EXPECT_EQ(ties.judge({{0, 3, 5}}).outside, 1);
}

TEST(KeptSets, RejectsASweepsSetWithoutMassWhereAnotherHasSome) {
  // The always-kept entry and two others have logits so small that their weights are 0 in double precision.
  const traces::Layer layer = test::weighted_layer(6, {{1e20, 1e20, 5e-324, 5e-324, 1e19, 5e-324}});
  Case given(layer, kHost + "+theta-sweep", 3);
  EXPECT_EQ(given.judge({{0, 1, 5}}).outside, 0);
  EXPECT_EQ(given.judge({{2, 3, 5}}).outside, 2);
}

TEST(KeptSets, LeavesAnotherGreedySetUndecided) {
  Case given(test::weighted_layer(6, {{8, 1, 4, 3, 2, 1}}, {{1, 2, 3, 4, 5, 6}}),
             "snapkv:window=1:pool=1+greedy", 3);
  const Positions own = given.record.kept.front();
  EXPECT_EQ(given.judge({own}).judged, 3);
  Positions other = own;
  other.front() = own.front() == 1 ? 0 : 1;
  std::ranges::sort(other);
  const TensorAgreement found = given.judge({other});
  EXPECT_EQ(found.outside, 0);
  EXPECT_EQ(found.undecided, 1);
  EXPECT_EQ(found.undecided_at, Positions{0});
  EXPECT_EQ(found.judged, 0);
  EXPECT_EQ(given.teacher_forced.front(), other);
}

// Entries 1, 3 and 4 belong to the cluster of 2, whose scores add up to more than that of 0 alone;
// the last is always kept.
TEST(KeptSets, JudgesRootsByTheSumsOfTheirRecordedClusters) {
  const traces::Layer layer = test::weighted_layer(6, {{8, 1, 4, 3, 2, 1}});
  const std::string policy = kHost + "+keepkv:order=merge-first";
  const Positions roots{0, 2, 2, 2, 2, 5};
  Case given(layer, policy, 2);
  EXPECT_EQ(given.judge({{2, 5}}, roots).outside, 0);
  EXPECT_EQ(given.judge({{2, 5}}, roots).judged, 2);
  const TensorAgreement other = given.judge({{0, 5}}, roots);
  EXPECT_EQ(other.outside, 1);
  EXPECT_EQ(other.undecided, 0);
  EXPECT_NE(other.worst.value().note.find("kept position 0 rather than 2, by sum of its cluster's scores"),
            std::string::npos)
      << other.worst->note;
  EXPECT_EQ(given.judge({{1, 5}}, roots).outside, 1) << "it is no root";
  EXPECT_EQ(given.judge({{5}}, roots).outside, 1) << "there are roots to keep";
  Case roomy(layer, policy, 4);
  EXPECT_EQ(roomy.judge({{0, 2, 5}}, roots).outside, 0) << "there are only two roots";
  EXPECT_EQ(roomy.judge({{0, 2, 5}}, roots).judged, 3) << "any other set would have been found";
  EXPECT_EQ(roomy.judge({{0, 2, 3, 5}}, roots).outside, 1);
  // Two roots whose sums only rounding tells apart.
  Case single(test::weighted_layer(6, {{4, 4 * kTie, 2, 2, 0.001, 1}}), policy, 2,
              reference::single_precision());
  EXPECT_EQ(single.judge({{0, 5}}, Positions{0, 1, 1, 0, 4, 5}).outside, 0);
  EXPECT_EQ(single.judge({{1, 5}}, Positions{0, 1, 1, 0, 4, 5}).outside, 0);
}

TEST(KeptSets, AllowsFewerThanTheBudgetOnlyWhereMergingComesFirst) {
  const std::vector<double> weights{8, 1, 4, 3, 2, 1};
  Case first(test::weighted_layer(6, {weights}), kHost + "+keepkv:order=merge-first", 3),
      evict(test::weighted_layer(6, {weights}), kHost + "+keepkv", 3);
  EXPECT_EQ(first.judge({{0, 5}}).outside, 0);
  EXPECT_EQ(first.judge({{0, 1, 2, 5}}).outside, 1) << "there is no room for four";
  EXPECT_EQ(first.judge({{0, 1}}).outside, 1) << "the last one always stays";
  const TensorAgreement fewer = evict.judge({{0, 5}});
  EXPECT_EQ(fewer.outside, 1);
  EXPECT_EQ(fewer.worst.value().note, "KV head 0: 2 entries are kept; the budget is 3");
}

// The set kept by an implementation with these scores of the candidates.
Positions kept_by(const Case& given, const std::vector<double>& scores) {
  std::vector<size_t> order(scores.size());
  for (size_t j = 0; j < order.size(); ++j) order[j] = j;
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t j) { return scores[j]; });
  const std::vector<int64_t>& always_kept = given.errors.ranking.always_kept;
  Positions kept = always_kept;
  for (size_t j = 0; std::ssize(kept) < given.implementation.entries; ++j) {
    kept.push_back(static_cast<int64_t>(order[j]));
  }
  std::ranges::sort(kept);
  return kept;
}

RC_GTEST_PROP(KeptSets, AcceptsEverySetByScoresWithinTheirErrorsAndNoneWithAClearlyWorseEntry, ()) {
  test::Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  std::vector<double> weights(13);
  for (double& weight : weights) {
    weight = static_cast<double>(1 + random.index(4)) * (1 + 1e-7 * random.uniform(0, 1));
  }
  Case given(test::weighted_layer(13, {weights}), kHost, 2 + random.index(11), reference::single_precision());
  const auto count = static_cast<size_t>(given.errors.ranking.candidates);
  const VectorView own = given.errors.ranking.scores.row(0).first(count),
                   errors = given.errors.score.row(0).first(count);
  std::vector<double> theirs(own.begin(), own.end());
  for (size_t j = 0; j < count; ++j) theirs[j] += random.uniform(-1, 1) * errors[j];
  const Positions kept = kept_by(given, theirs);
  const TensorAgreement found = given.judge({kept});
  RC_CLASSIFY(*found.near_tie_swaps > 0);
  RC_ASSERT(found.agrees());
  // The best entry is replaced by the worst, if their scores differ by more than three times their bounds.
  Positions wrong = kept;
  const auto worst = std::ranges::min_element(own) - own.begin(),
             best = std::ranges::max_element(own) - own.begin();
  const bool clear = own[best] - own[worst] > 3 * (errors[best] + errors[worst]);
  if (!clear || !std::ranges::binary_search(kept, best) || std::ranges::binary_search(kept, worst)) return;
  std::ranges::replace(wrong, best, worst);
  std::ranges::sort(wrong);
  RC_ASSERT(given.judge({wrong}).outside >= 1);
}

}  // namespace
}  // namespace kvbound::sim::kept_sets_test
