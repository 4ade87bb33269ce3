#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/sim/diff/claims/claims.hpp>
#include <kvbound/sim/diff/replay/head_replay.hpp>

#include "support/merging_cases.hpp"
#include "support/replay_case.hpp"

namespace kvbound::sim::head_replay_test {
namespace {

const auto* const kOneThread = testing::AddGlobalTestEnvironment(new test::OneThread);

using test::Positions;
using test::ReplayCase;

constexpr int64_t kTokens = 30, kSteps = 5, kBudget = 14;

traces::Layer layer_of(uint64_t seed) { return test::trace_layer({{4, 2, 6, 9}, kTokens, 8, kSteps, seed}); }

std::vector<test::NamedPolicy> policies() {
  std::vector<test::NamedMerge> merges = test::targeted_merges(test::kMergeAll);
  std::erase_if(merges, [](const test::NamedMerge& merge) { return rules_of(merge.merge).period; });
  merges.push_back({"cam", Cam{4, 3}});
  return test::merging_policies(merges);
}

// The claim made by a record for KV head 1 at a step; empty for hosts that evict nothing.
ClaimedStep claimed(const StepRecord& step) {
  if (step.evicted.empty()) return {};
  return {step.evicted[1], step.merged_into[1]};
}

// The number of elements that exceed their bounds, and the largest bound.
struct Beyond {
  int64_t count = 0;
  double largest_bound = 0;
  void add(VectorView theirs, VectorView own, VectorView bounds) {
    for (size_t i = 0; i < own.size(); ++i) {
      count += !(std::abs(theirs[i] - own[i]) <= bounds[i]);
      largest_bound = std::max(largest_bound, bounds[i]);
    }
  }
};

// A step, and what its queries attended to.
struct AttendedStep {
  ReplayedStep step;
  Matrix output, errors;
  bool certain = true;
};
AttendedStep attended(HeadReplay& replay, int64_t t, const ClaimedStep& claim) {
  AttendedStep seen;
  seen.step = replay.step(t, claim, [&](const AttendedCache& at) {
    seen.output = at.output;
    seen.errors = at.errors.output;
    seen.certain = at.certain;
  });
  return seen;
}

TEST(HeadReplay, IsTheReferencesSessionWhereItsChoicesAreClaimedOrNone) {
  for (const auto& [name, policy, always_kept] : policies()) {
    SCOPED_TRACE(name);
    const ReplayCase given(layer_of(5), policy, kBudget, kSteps);
    const Positions& kept = given.own.prompt.kept[1];
    HeadReplay forced(given.part, 1, kept, true), free(given.part, 1, kept, true);
    EXPECT_EQ(forced.merged().votes, given.own.prompt.merges[1].votes);
    for (int64_t t = 0; t < kSteps; ++t) {
      const StepRecord& own = given.own.steps[t];
      const AttendedStep seen = attended(forced, t, claimed(own)), other = attended(free, t, {});
      const ReplayedStep &step = seen.step, &unclaimed = other.step;
      Beyond beyond;
      beyond.add(own.output.view().middle_rows(2, 2).row(0), seen.output.row(0), seen.errors.row(0));
      beyond.add(own.output.view().middle_rows(2, 2).row(1), other.output.row(1), seen.errors.row(1));
      EXPECT_EQ(beyond.count, 0);
      EXPECT_LT(beyond.largest_bound, 1e-6);
      EXPECT_TRUE(seen.certain);
      EXPECT_FALSE(step.rebuilt);
      if (own.evicted.empty()) continue;
      EXPECT_TRUE(step.evicted.judged && step.into.judged);
      EXPECT_FALSE(step.evicted.offence || step.into.offence);
      EXPECT_EQ(unclaimed.evicted.teacher_forced, own.evicted[1]);
      EXPECT_EQ(unclaimed.into.teacher_forced, own.merged_into[1]);
      EXPECT_FALSE(unclaimed.evicted.judged || unclaimed.into.judged);
    }
  }
}

TEST(HeadReplay, HoldsWhatInputsInSinglePrecisionLeadToAndNothingFarFromIt) {
  for (const auto& [name, policy, always_kept] : policies()) {
    SCOPED_TRACE(name);
    const ReplayCase given(layer_of(6), policy, kBudget, kSteps, test::single_precision_inputs());
    const LayerRecord theirs =
        test::recorded(test::stored_in_single_precision(given.layer), policy, kBudget, kSteps);
    HeadReplay replay(given.part, 1, theirs.prompt.kept[1], true);
    const HeadMerge& merge = theirs.prompt.merges[1];
    Beyond keys, values, outputs, others;
    for (size_t i = 0; i < merge.positions.size(); ++i) {
      const auto row = static_cast<int64_t>(i), other = static_cast<int64_t>(i == 0 ? 1 : i - 1);
      keys.add(merge.keys.row(row), replay.merged().keys.row(row),
               replay.prompt_entries().errors.keys.row(row));
      values.add(merge.values.row(row), replay.merged().values.row(row),
                 replay.prompt_entries().errors.values.row(row));
      others.add(merge.keys.row(other), replay.merged().keys.row(row),
                 replay.prompt_entries().errors.keys.row(row));
    }
    EXPECT_EQ(keys.count, 0);
    EXPECT_EQ(values.count, 0);
    EXPECT_GT(others.count, 5 * kBudget) << "keys are told from those of other entries";
    for (int64_t t = 0; t < kSteps; ++t) {
      const StepRecord& step = theirs.steps[t];
      const AttendedStep own = attended(replay, t, claimed(step));
      for (int64_t i = 0; i < 2; ++i)
        outputs.add(step.output.row(2 + i), own.output.row(i), own.errors.row(i));
    }
    EXPECT_EQ(outputs.count, 0);
    EXPECT_LT(std::max({keys.largest_bound, values.largest_bound, outputs.largest_bound}), 1);
    EXPECT_GT(std::min(keys.largest_bound, values.largest_bound), 1e-8);
  }
}

// A KV head's cache of five entries, from which tova evicts the one with the least weight.
ReplayCase weighted_case(const std::vector<double>& weights, const Merge& merge,
                         const reference::Arithmetic& arithmetic = reference::double_precision()) {
  return {test::weighted_layer(5, {weights}),
          {Tova{0}, {}, {}, {}, merge},
          5,
          std::ssize(weights) - 5,
          arithmetic};
}

TEST(HeadReplay, AcceptsAnotherEvictionOnlyWhereRoundingExplainsIt) {
  const std::vector<double> weights{8, 2 * (1 + 1e-8), 7, 2, 6, 5};
  const Positions kept{0, 1, 2, 3, 4};
  const auto evicted = [&](const reference::Arithmetic& arithmetic, int64_t position) {
    const ReplayCase given = weighted_case(weights, D2o{}, arithmetic);
    return HeadReplay(given.part, 0, kept, true).step(0, {position, std::nullopt}).evicted;
  };
  EXPECT_FALSE(evicted(reference::double_precision(), 3).near_tie);
  EXPECT_FALSE(evicted(reference::double_precision(), 3).offence);
  EXPECT_TRUE(evicted(reference::double_precision(), 1).offence);
  const Choice tie = evicted(reference::single_precision(), 1);
  EXPECT_TRUE(tie.near_tie);
  EXPECT_FALSE(tie.offence);
  EXPECT_EQ(tie.teacher_forced, 1);
  const Choice wrong = evicted(reference::single_precision(), 4);
  ASSERT_TRUE(wrong.offence);
  EXPECT_EQ(wrong.teacher_forced, 4);
  EXPECT_EQ(wrong.offence->note.rfind("step 0, KV head 0: position 3 stayed rather than 4, by score", 0), 0)
      << wrong.offence->note;
}

TEST(HeadReplay, EvictsAndMergesAsClaimedHoweverWrong) {
  const ReplayCase given = weighted_case({8, 2, 7, 3, 6, 5, 4}, test::with_target(KeepKv{}, test::kMergeAll));
  HeadReplay replay(given.part, 0, {0, 1, 2, 3, 4}, true);
  EXPECT_TRUE(replay.step(0, {0, 2}).evicted.offence);
  const AttendedStep next = attended(replay, 1, {0, 2});
  ASSERT_TRUE(next.step.evicted.offence);
  EXPECT_NE(next.step.evicted.offence->note.find("position 0 was evicted, which is not in the cache"),
            std::string::npos);
  EXPECT_NEAR(next.output(0, 0), 1, 1e-12) << "all values are 1";
}

TEST(HeadReplay, SaysThatNothingWasEvictedFromACacheWithRoom) {
  const ReplayCase given = weighted_case({8, 2, 7, 3, 6, 5}, D2o{});
  const auto step = [&](const ClaimedStep& claim) {
    return HeadReplay(given.part, 0, {0, 2, 4}, true).step(0, claim);
  };
  const ReplayedStep right = step({kNoPosition, kNothingEvicted});
  EXPECT_FALSE(right.evicted.offence || right.into.offence);
  EXPECT_EQ(right.into.teacher_forced, kNothingEvicted);
  for (const int64_t into : {int64_t{2}, kNoPosition}) {
    const ReplayedStep wrong = step({kNoPosition, into});
    ASSERT_TRUE(wrong.into.offence) << into;
    EXPECT_EQ(wrong.into.offence->note, "step 0, KV head 0: nothing was evicted");
  }
  const ReplayedStep evicted = step({2, kNothingEvicted});
  ASSERT_TRUE(evicted.evicted.offence);
  EXPECT_NE(evicted.evicted.offence->note.find("the cache has 4 entries and the budget is 5"),
            std::string::npos);
}

TEST(HeadReplay, LeavesUndecidedEvictionsByScoresWithoutBoundsAndOnUncertainCaches) {
  const std::vector<double> weights{8, 2, 7, 3, 6, 5};
  const auto undecided = [&](const char* policy, const Positions& kept) {
    const ReplayCase given(test::weighted_layer(5, {weights}), parse_policy(policy), 5, 1);
    HeadReplay replay(given.part, 0, kept, false);
    const Choice choice = replay.step(0, {kept.front(), std::nullopt}).evicted;
    EXPECT_EQ(choice.teacher_forced, kept.front());
    EXPECT_NE(choice.undecided, choice.offence.has_value());
    EXPECT_NE(choice.undecided, choice.judged);
    return choice.undecided;
  };
  const Positions all{0, 1, 2, 3, 4};
  EXPECT_FALSE(undecided("tova+d2o", all));
  EXPECT_FALSE(undecided("tova+critical+d2o", all));
  EXPECT_TRUE(undecided("tova+keepkv:order=merge-first", all));
}

// Scores that measure a change have bounds only over keys and values without errors.
TEST(HeadReplay, JudgesEvictionsByChangesWhereMergedNumbersAreClaimed) {
  for (const char* policy :
       {"tova+obcache-joint+keepkv:threshold=none", "h2o:window=2:recent=2+exact+d2o:threshold=none"}) {
    SCOPED_TRACE(policy);
    ReplayCase given(layer_of(8), parse_policy(policy), kBudget, kSteps);
    const LayerClaims claims = claims_of(given.own);
    const auto last_choice = [&](const ReplayedLayer& part, int64_t position) {
      HeadReplay replay(part, 1, given.own.prompt.kept[1], true);
      for (int64_t t = 0; t < kSteps - 1; ++t) replay.step(t, claimed(given.own.steps[t]));
      return replay.step(kSteps - 1, {position, std::nullopt}).evicted;
    };
    const int64_t own = given.own.steps.back().evicted[1], other = own == 0 ? 1 : 0;
    ReplayedLayer forced = given.part;
    forced.first_rows = {0, kBudget};
    forced.exact_prompt = ExactRows(prompt_claims(claims), Dtype::f64);
    forced.exact_steps = ExactRows(step_claims(claims), Dtype::f64);
    EXPECT_FALSE(last_choice(forced, own).offence);
    for (const int64_t position : {other, other + 1, other + 2}) {
      if (!std::ranges::binary_search(given.own.prompt.kept[1], position) || position == own) continue;
      EXPECT_TRUE(last_choice(given.part, position).undecided);
      EXPECT_FALSE(last_choice(forced, position).undecided);
    }
  }
}

// Of claimed rows, after the prompt and at steps: the errors of weights move all
// components of a mean together.
TEST(HeadReplay, BoundsMergedEntriesAsWholesWhereTheyAreClaimed) {
  const ReplayCase given(test::trace_layer({{4, 2, 16, 9}, kTokens, 8, kSteps, 8}),
                         parse_policy("h2o:window=2:recent=2+keepkv:threshold=none:key=convex:gqa=mean"),
                         kBudget, kSteps, test::single_precision_inputs());
  LayerClaims claims = claims_of(given.own);
  for (RealClaim* claim : {&*claims.merged_value, &*claims.step_merged_value})
    for (double& number : claim->numbers) number *= 1.5;
  ReplayedLayer part = given.part;
  part.first_rows = {0, kBudget};
  part.exact_prompt = ExactRows(prompt_claims(claims), Dtype::f64);
  part.exact_steps = ExactRows(step_claims(claims), Dtype::f64);
  HeadReplay replay(part, 1, given.own.prompt.kept[1], true),
      unclaimed(given.part, 1, given.own.prompt.kept[1], true);
  // The savings of the gain and of a difference that is half of it, and of keys that do not differ.
  const auto are_known = [](const std::vector<double>& key, const std::vector<double>& value) {
    return key.size() == 2 && value.size() == 2 && key[0] > 0 && key[1] == 0 && value[0] > 0 &&
           std::abs(value[1] / value[0] - 0.5) < 1e-6;
  };
  const ExpectedEntries& prompt = replay.prompt_entries();
  for (size_t i = 0; i < prompt.votes.size(); ++i) {
    EXPECT_EQ(are_known(prompt.key_savings[i], prompt.value_savings[i]), prompt.votes[i] > 1);
    EXPECT_TRUE(unclaimed.prompt_entries().value_savings[i].empty());
  }
  for (int64_t t = 0; t < kSteps; ++t) {
    const ExpectedEntries merged = replay.step(t, claimed(given.own.steps[t])).merged;
    EXPECT_GT(merged.key_savings.at(0).at(0), 0);
    EXPECT_GT(merged.value_savings.at(0).at(1), 0);
    EXPECT_TRUE(unclaimed.step(t, claimed(given.own.steps[t])).merged.value_savings.at(0).empty());
  }
}

TEST(HeadReplay, KnowsHowManyMayHaveMergedWithEachEntry) {
  // In one dimension all keys of the same sign have cosine 1, so that an evicted entry may be
  // merged into any of them.
  const ReplayCase one = weighted_case({8, 2, 7, 3, 6, 5}, D2o{test::kMergeAll});
  const HeadReplay ambiguous(one.part, 0, {0, 2, 3, 4}, true);
  EXPECT_EQ(ambiguous.prompt_entries().members[0].least, 0);
  EXPECT_EQ(ambiguous.prompt_entries().members[0].most, 1);
  EXPECT_FALSE(ambiguous.prompt_entries().is_certain(0));
  HeadReplay first(one.part, 0, {2}, true);
  EXPECT_EQ(first.prompt_entries().members[0].least, 4);
  EXPECT_EQ(first.prompt_entries().members[0].most, 4);
  EXPECT_TRUE(first.prompt_entries().is_certain(0));
  EXPECT_TRUE(attended(first, 0, {}).certain);
  const ReplayCase order(test::weighted_layer(5, {{8, 2, 7, 3, 6, 5}}),
                         parse_policy("tova+keepkv:order=merge-first"), 3, 1);
  HeadReplay unexplained(order.part, 0, {0, 1, 2}, false);
  EXPECT_FALSE(unexplained.prompt_entries().is_certain(0));
  EXPECT_EQ(unexplained.prompt_entries().members[0].most, 5);
  EXPECT_TRUE(unexplained.merged().clusters.empty()) << "of another set no clusters are known";
  EXPECT_FALSE(attended(unexplained, 0, {}).certain);
}

TEST(HeadReplay, StopsBeingCertainWhereAnUnclaimedTargetIsAmbiguous) {
  const ReplayCase given = weighted_case({8, 2, 7, 3, 6, 5, 4}, D2o{test::kMergeAll});
  HeadReplay replay(given.part, 0, {0, 1, 2, 3, 4}, true);
  EXPECT_TRUE(attended(replay, 0, {}).certain) << "its outputs come before its merge";
  EXPECT_FALSE(attended(replay, 1, {}).certain);
  HeadReplay forced(given.part, 0, {0, 1, 2, 3, 4}, true);
  EXPECT_TRUE(attended(forced, 0, {1, 0}).certain);
  EXPECT_TRUE(attended(forced, 1, {}).certain);
}

// CaM spreads the value of an evicted entry over the two entries behind it, with certainty
// where attention is uniform.
TEST(HeadReplay, SpreadsValuesAsClaimed) {
  const ReplayCase given = weighted_case({8, 8, 8, 8, 8, 8, 8}, Cam{2, 3});
  HeadReplay spread(given.part, 0, {0, 1, 2, 3, 4}, true), dropped(given.part, 0, {0, 1, 2, 3, 4}, true);
  EXPECT_FALSE(spread.step(0, {5, kNoPosition}).into.offence) << "the newest entry has none behind it";
  const ReplayedStep right = spread.step(1, {0, 1});
  EXPECT_FALSE(right.into.offence);
  EXPECT_FALSE(dropped.step(0, {0, 1}).into.offence);
  const AttendedStep wrong = attended(dropped, 1, {1, kNoPosition});
  EXPECT_TRUE(wrong.step.into.offence);
  EXPECT_NEAR(wrong.output(0, 0), 7.0 / 6, 1e-12) << "six entries share seven values";
}

}  // namespace
}  // namespace kvbound::sim::head_replay_test
