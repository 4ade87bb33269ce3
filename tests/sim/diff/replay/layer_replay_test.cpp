#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>
#include <string_view>

#include <gtest/gtest.h>

#include <kvbound/sim/diff/claims/claims.hpp>
#include <kvbound/sim/diff/replay/layer_replay.hpp>
#include <kvbound/sim/diff/replay/metric_errors.hpp>

#include "support/merging_cases.hpp"
#include "support/replay_case.hpp"

namespace kvbound::sim::layer_replay_test {
namespace {

const auto* const kOneThread = testing::AddGlobalTestEnvironment(new test::OneThread);

using test::Positions;
using test::ReplayCase;
using test::ReplayJudgement;

constexpr int64_t kTokens = 30, kSteps = 6, kBudget = 14;

traces::Layer layer_of(uint64_t seed, int64_t query_heads = 4) {
  return test::trace_layer({{query_heads, 2, 6, 9}, kTokens, 8, kSteps, seed});
}

const TensorAgreement& find(const ReplayJudgement& judgement, const std::string& tensor) {
  const auto found = std::ranges::find(judgement.agreements, tensor, &TensorAgreement::tensor);
  if (found == judgement.agreements.end()) throw std::out_of_range(tensor + " was not judged");
  return *found;
}

int64_t total(const ReplayJudgement& judgement, int64_t TensorAgreement::*figure) {
  int64_t sum = 0;
  for (const TensorAgreement& tensor : judgement.agreements) sum += tensor.*figure;
  return sum;
}

std::vector<test::NamedPolicy> policies() {
  std::vector<test::NamedMerge> merges = test::targeted_merges(test::kMergeAll);
  merges.push_back({"cam", Cam{4, 3}});
  merges.push_back({"keepkv above 0.5", test::with_target(KeepKv{}, {Decimal{5, 1}})});
  return test::merging_policies(merges);
}

bool is_periodic(const Policy& policy) { return rules_of(policy.merge).period.has_value(); }

LayerClaims without_targets(LayerClaims claims) {
  claims.target_of.reset();
  claims.rebuilt_target_of.reset();
  return claims;
}

TEST(LayerReplay, OfTheReferenceWithItselfIsCompleteForEveryMethodAndHost) {
  for (const auto& [name, policy, always_kept] : policies()) {
    SCOPED_TRACE(name);
    const ReplayCase given(layer_of(5), policy, kBudget, kSteps);
    const ReplayJudgement found = given.judge(claims_of(given.own));
    EXPECT_EQ(total(found, &TensorAgreement::outside), 0);
    EXPECT_EQ(total(found, &TensorAgreement::undecided), 0);
    const bool clusters = rules_of(policy.merge).target.has_value();
    const bool steps = clusters && evicts(policy.host);
    EXPECT_EQ(found.agreements.size(),
              (evicts(policy.host) ? 6u : 4u) + clusters + (steps ? 3 : 0) + (is_periodic(policy) ? 4 : 0));
    for (const TensorAgreement& tensor : found.agreements) {
      EXPECT_EQ(tensor.judged, tensor.elements) << tensor.tensor;
      EXPECT_GT(tensor.elements, 0) << tensor.tensor;
    }
    EXPECT_EQ(std::ranges::count(found.outputs.certain, true), 12);
    const ReplayJudgement partial = given.judge(without_targets(claims_of(given.own)));
    EXPECT_EQ(total(partial, &TensorAgreement::outside), 0);
    EXPECT_EQ(std::ranges::count(partial.outputs.certain, true), is_periodic(policy) ? 4 : 12)
        << "nothing is certain from a rebuild on that is not recorded";
  }
}

TEST(LayerReplay, SaysWhichChoicesItFollowed) {
  for (const auto& [name, policy, always_kept] : policies()) {
    SCOPED_TRACE(name);
    const ReplayCase given(layer_of(5), policy, kBudget, kSteps);
    // Without a claim the replay makes the same choices.
    for (const LayerClaims& claims : {claims_of(given.own), LayerClaims{}}) {
      const FollowedChoices followed = given.judge(claims).followed;
      EXPECT_EQ(followed.kept, given.own.prompt.kept);
      ASSERT_EQ(followed.steps.size(), given.own.steps.size());
      for (size_t g = 0; g < followed.kept.size(); ++g) {
        EXPECT_EQ(followed.target_of[g], given.own.prompt.merges[g].target_of);
      }
      for (size_t t = 0; t < followed.steps.size(); ++t) {
        const FollowedStep& step = followed.steps[t];
        const StepRecord& own = given.own.steps[t];
        EXPECT_EQ(step.evicted, own.evicted);
        EXPECT_EQ(step.rebuilt(), own.rebuilt);
        EXPECT_TRUE(own.rebuilt || step.merged_into == own.merged_into);
        for (size_t g = 0; own.rebuilt && g < step.kept.size(); ++g) {
          EXPECT_EQ(step.kept[g], own.merges[g].positions);
          EXPECT_EQ(step.target_of[g], own.merges[g].target_of);
          EXPECT_EQ(step.rebuilt_rows[g], std::ssize(own.merges[g].positions));
        }
      }
    }
  }
}

TEST(LayerReplay, AcceptsWhatInputsInSinglePrecisionLeadTo) {
  int64_t merged = 0, different = 0;
  for (const auto& [name, policy, always_kept] : policies()) {
    SCOPED_TRACE(name);
    for (uint64_t seed = 10; seed < 13; ++seed) {
      const ReplayCase given(layer_of(seed), policy, kBudget, kSteps, test::single_precision_inputs());
      const LayerRecord theirs =
          test::recorded(test::stored_in_single_precision(given.layer), policy, kBudget, kSteps);
      const ReplayJudgement found = given.judge(claims_of(theirs));
      for (const TensorAgreement& tensor : found.agreements) {
        EXPECT_EQ(tensor.outside, 0) << tensor.tensor << " " << tensor.worst.value().note;
        EXPECT_TRUE(tensor.agrees()) << tensor.tensor << " as a whole";
      }
      EXPECT_GT(find(found, "output").judged, find(found, "output").elements / 2);
      for (const HeadMerge& merge : theirs.prompt.merges) merged += merge.counts.merged;
      different += find(found, "output").worst.value().error > 1e-12;
    }
  }
  EXPECT_GT(merged, 500);
  EXPECT_GT(different, 100) << "rounding was to matter";
}

const Policy kKeepKv{H2o{6, 2, 4}, {}, {}, {}, test::with_target(KeepKv{}, test::kMergeAll)};

TEST(LayerReplay, FindsOneVoteTooManyOrTooFew) {
  const ReplayCase given(layer_of(6), kKeepKv, kBudget, kSteps);
  LayerClaims claims = claims_of(given.own);
  for (const double wrong : {-1.0, 1.0, 0.5}) {
    for (const size_t at : {size_t{0}, claims.votes->numbers.size() - 1}) {
      LayerClaims changed = claims;
      changed.votes->numbers[at] += wrong;
      const ReplayJudgement found = given.judge(changed);
      EXPECT_EQ(find(found, "votes").outside, 1) << wrong;
      EXPECT_EQ(find(found, "votes").worst.value().index, (Positions{static_cast<int64_t>(at)}));
      const auto first = std::ranges::find_if(found.agreements,
                                              [](const TensorAgreement& tensor) { return !tensor.agrees(); });
      EXPECT_EQ(first->tensor, "votes") << "the fault shows there first";
    }
  }
}

TEST(LayerReplay, FindsAnyMergedNumberOrOutputThatIsOffByThreeBounds) {
  for (const auto& [name, policy, always_kept] : policies()) {
    SCOPED_TRACE(name);
    const ReplayCase given(layer_of(7), policy, kBudget, is_periodic(policy) ? 4 : 2,
                           test::single_precision_inputs());
    const LayerClaims claims = claims_of(given.own);
    for (const auto& [tensor, member] :
         {std::pair("merged_key", &LayerClaims::merged_key),
          std::pair("merged_value", &LayerClaims::merged_value),
          std::pair("rebuilt_merged_key", &LayerClaims::rebuilt_merged_key),
          std::pair("rebuilt_merged_value", &LayerClaims::rebuilt_merged_value),
          std::pair("step_merged_key", &LayerClaims::step_merged_key),
          std::pair("step_merged_value", &LayerClaims::step_merged_value),
          std::pair("output", &LayerClaims::output)}) {
      if (!(claims.*member)) continue;
      const size_t count = (claims.*member)->numbers.size();
      // Of steps only the last one's: what is claimed of one decides what the later ones are.
      const size_t first = std::string_view(tensor).starts_with("step_") ? count - 12 : 1;
      for (const size_t at : {first, (first + count) / 2, count - 1}) {
        LayerClaims changed = claims;
        double& number = ((changed.*member)->numbers)[at];
        const double right = number;
        if (right == 0) continue;  // nothing merged
        number = right + 1;
        const double bound = find(given.judge(changed), tensor).worst.value().bound;
        EXPECT_LT(bound, 1e-3);
        number = right + 3 * bound;
        EXPECT_EQ(find(given.judge(changed), tensor).outside, 1) << tensor;
        number = right - 0.3 * bound;
        EXPECT_EQ(find(given.judge(changed), tensor).outside, 0) << tensor;
      }
    }
  }
}

// A claim of a merged number that is wrong is followed, so that later numbers differ from it, unless it is
// not the tested implementation's own number to the last bit.
TEST(LayerReplay, ContinuesWithTheMergedNumbersThatAreClaimedExactly) {
  const ReplayCase given(layer_of(7), kKeepKv, kBudget, kSteps);
  for (const auto member : {&LayerClaims::merged_key, &LayerClaims::merged_value,
                            &LayerClaims::step_merged_key, &LayerClaims::step_merged_value}) {
    LayerClaims claims = claims_of(given.own);
    std::vector<double>& numbers = (claims.*member)->numbers;
    const auto merged = std::ranges::find_if(numbers, [](double number) { return number != 0; });
    *merged += 0.5;
    EXPECT_GT(find(given.judge(claims), "output").outside, 0);
    (claims.*member)->storage = Dtype::f32;
    EXPECT_EQ(find(given.judge(claims), "output").outside, 0);
    (claims.*member)->storage = Dtype::f64;
    *merged = std::numeric_limits<double>::infinity();
    EXPECT_EQ(find(given.judge(claims), "output").outside, 0);
  }
}

TEST(LayerReplay, ContinuesWithTheVotesThatAreClaimed) {
  const ReplayCase given(layer_of(7), kKeepKv, kBudget, kSteps);
  for (const auto member : {&LayerClaims::votes, &LayerClaims::step_votes}) {
    LayerClaims claims = claims_of(given.own);
    (claims.*member)->numbers.front() += 1;
    EXPECT_GT(find(given.judge(claims), "output").outside, 0);
    (claims.*member)->numbers.front() += 0.5;
    EXPECT_EQ(find(given.judge(claims), "output").outside, 0) << "no number of votes";
  }
}

// Inputs in single precision make the bounds of merged numbers large. Where these are claimed, the bounds of
// what follows are those of a single merge.
TEST(LayerReplay, BoundsDoNotCompoundWhereMergedNumbersAreClaimed) {
  const ReplayCase given(layer_of(7), kKeepKv, kBudget, kSteps, test::single_precision_inputs());
  const LayerClaims all = claims_of(given.own);
  LayerClaims without_keys = all, without_values = all;
  without_keys.merged_key = without_keys.step_merged_key = std::nullopt;
  without_values.merged_value = without_values.step_merged_value = std::nullopt;
  LayerClaims without_both = without_keys;
  without_both.merged_value = without_both.step_merged_value = std::nullopt;
  const auto largest = [&](const LayerClaims& claims, int64_t step) {
    const ReplayJudgement judgement = given.judge(claims);
    return *std::ranges::max_element(judgement.outputs.errors[step].row(0));
  };
  for (const int64_t step : {int64_t{0}, kSteps - 1}) {
    const double bound = largest(all, step);
    EXPECT_LT(1.05 * bound, largest(without_keys, step));
    EXPECT_LT(1.05 * bound, largest(without_values, step));
    EXPECT_LT((step == 0 ? 2 : 4) * bound, largest(without_both, step));
  }
}

TEST(LayerReplay, LeavesUndecidedTheStepsRowsOfChoicesThatCannotBeFollowed) {
  const ReplayCase given(layer_of(7), kKeepKv, kBudget, kSteps);
  LayerClaims claims = claims_of(given.own);
  claims.merged_into->front() = 1000;
  const ReplayJudgement found = given.judge(claims);
  EXPECT_EQ(find(found, "merged_into").outside, 1);
  EXPECT_EQ(find(found, "step_votes").undecided, 1);
  EXPECT_EQ(find(found, "step_votes").undecided_at, Positions{0});
  EXPECT_EQ(find(found, "step_merged_key").undecided, 6);
  EXPECT_EQ(find(found, "step_merged_value").undecided, 6);
}

TEST(LayerReplay, FindsNumbersOfAStepThatMergedNothing) {
  const Policy policy{H2o{6, 2, 4}, {}, {}, {}, test::with_target(KeepKv{}, {Decimal{1, 0}})};
  const ReplayCase given(layer_of(7), policy, kBudget, kSteps);
  for (const auto& [tensor, member] : {std::pair("step_votes", &LayerClaims::step_votes),
                                       std::pair("step_merged_key", &LayerClaims::step_merged_key),
                                       std::pair("step_merged_value", &LayerClaims::step_merged_value)}) {
    LayerClaims claims = claims_of(given.own);
    EXPECT_EQ(total(given.judge(claims), &TensorAgreement::outside), 0);
    (claims.*member)->numbers.back() = 1;
    EXPECT_EQ(total(given.judge(claims), &TensorAgreement::outside), 1);
    EXPECT_EQ(find(given.judge(claims), tensor).outside, 1);
  }
}

TEST(LayerReplay, FindsRowsThatAreOneEntryOff) {
  const ReplayCase given(layer_of(8), kKeepKv, kBudget, kSteps);
  for (const auto& [tensor, member] : {std::pair("merged_key", &LayerClaims::merged_key),
                                       std::pair("merged_value", &LayerClaims::merged_value)}) {
    LayerClaims claims = claims_of(given.own);
    std::vector<double>& numbers = (claims.*member)->numbers;
    std::rotate(numbers.begin(), numbers.begin() + 6, numbers.end());
    const TensorAgreement found = find(given.judge(claims), tensor);
    EXPECT_EQ(found.outside, found.elements);
  }
}

TEST(LayerReplay, FindsAnotherTargetAndJudgesWhatFollowsOnTheCacheThatItMade) {
  const ReplayCase given(layer_of(9), kKeepKv, kBudget, kSteps);
  LayerClaims claims = claims_of(given.own);
  const int64_t own = claims.merged_into->front();
  claims.merged_into->front() = own == 0 ? 1 : 0;  // these two are always kept
  const ReplayJudgement found = given.judge(claims);
  EXPECT_GE(find(found, "merged_into").outside, 1);
  EXPECT_EQ(find(found, "merged_into").worst.value().index, (Positions{0, 0}));
  EXPECT_EQ(find(found, "merged_into").worst.value().expected, static_cast<double>(own));
  EXPECT_EQ(found.record.steps[0].output.numbers().size(), 24u);
  const TensorAgreement& output = find(found, "output");
  EXPECT_GT(output.outside, 0) << "the claimed outputs are of another cache";
  EXPECT_GE(output.worst.value().index.front(), 1) << "not those before the merge";
  EXPECT_LT(output.worst.value().index[1], 2) << "not those of the other KV head";
}

TEST(LayerReplay, FindsAnotherEviction) {
  const ReplayCase given(layer_of(9), kKeepKv, kBudget, kSteps);
  LayerClaims claims = claims_of(given.own);
  claims = without_targets(std::move(claims));
  claims.merged_into.reset();
  claims.step_votes.reset();
  claims.step_merged_key.reset();
  claims.step_merged_value.reset();
  claims.output.reset();
  const auto other = std::ranges::find_if(given.own.prompt.kept[1], [&](int64_t position) {
    return position >= 2 && position != (*claims.evicted)[1];
  });
  (*claims.evicted)[1] = *other;
  claims.evicted->resize(2);
  ReplayCase first(given.layer, kKeepKv, kBudget, 1);
  const ReplayJudgement found = first.judge(claims);
  EXPECT_EQ(find(found, "evicted").outside, 1);
  EXPECT_EQ(find(found, "evicted").outside_at, Positions{1});
  EXPECT_EQ(found.followed.steps[0].evicted, *claims.evicted);
  EXPECT_EQ(find(found, "evicted").worst.value().claimed, static_cast<double>(*other));
  EXPECT_EQ(found.record.steps[0].evicted, *claims.evicted);
  EXPECT_EQ(found.agreements.size(), 4u) << "nothing is said of what is not claimed";
}

// All entries but 0 are kept. In KV head 0 its key has the same cosine with the keys of entries 1 and 2; in
// KV head 1 it is nearer to entry 1's.
traces::Layer ambiguous_layer() {
  traces::Layer layer = test::weighted_layer(5, {{1, 9, 8, 7, 9, 1}, {1, 9, 8, 7, 9, 1}});
  layer.shape.head_dim = 2;
  layer.shape.model_dim = 2;
  layer.keys = Tensor(2, 6, 2);
  layer.queries = Tensor(2, 2, 2);
  layer.values = Tensor(2, 6, 2);
  layer.output_projection = Matrix(4, 2);
  test::Random random(3);
  for (double& number : layer.values.numbers()) number = random.normal();
  for (double& number : layer.queries.numbers()) number = 1;
  for (int64_t i = 0; i < 4; ++i) layer.output_projection(i, i % 2) = 1;
  const Matrix keys = test::matrix({{0.5, 0.5}, {3, 1}, {1, 3}, {-2, 6}, {6, -2}, {1, 1}});
  for (int64_t g = 0; g < 2; ++g) std::ranges::copy(keys.numbers(), layer.keys.slice(g).row(0).begin());
  layer.keys.slice(1)(0, 0) = 0.75;
  return layer;
}

struct AmbiguousCase : ReplayCase {
  AmbiguousCase()
      : ReplayCase(ambiguous_layer(), {Tova{0}, {}, {}, {}, test::with_target(KeepKv{}, test::kMergeAll)}, 4,
                   1) {}
};

TEST(LayerReplay, AcceptsVotesThatOneAmbiguousMemberAllowsAndNoOthers) {
  const AmbiguousCase given;
  ASSERT_EQ(given.own.prompt.kept.front(), (Positions{1, 2, 3, 4}));
  LayerClaims claims;
  const auto judged = [&](const std::vector<double>& votes) {
    claims.votes = RealClaim{{8}, votes, Dtype::f64};
    return given.judge(claims).agreements.front();
  };
  EXPECT_EQ(judged({2, 1, 1, 1, 2, 1, 1, 1}).outside, 0);
  const TensorAgreement other = judged({1, 2, 1, 1, 2, 1, 1, 1});
  EXPECT_EQ(other.outside, 0);
  EXPECT_EQ(other.undecided, given.own.prompt.merges[0].votes[0] == 2 ? 2 : 0);
  EXPECT_EQ(judged({3, 1, 1, 1, 2, 1, 1, 1}).outside, 1) << "there is one member";
  EXPECT_EQ(judged({1.5, 1, 1, 1, 2, 1, 1, 1}).outside, 1) << "no number of entries";
  EXPECT_EQ(judged({0, 1, 1, 1, 2, 1, 1, 1}).outside, 1) << "the entry itself votes";
  EXPECT_EQ(judged({2, 1, 2, 1, 2, 1, 1, 1}).outside, 1) << "entry 3 is far";
  EXPECT_EQ(judged({2, 1, 1, 1, 1, 2, 1, 1}).outside, 2) << "KV head 1 is certain";
}

TEST(LayerReplay, LeavesUndecidedTheNumbersOfAnAmbiguousKvHeadAlone) {
  const AmbiguousCase given;
  LayerClaims claims = without_targets(claims_of(given.own));
  for (double& number : claims.merged_value->numbers) number += 1;
  for (double& number : claims.output->numbers) number += 1;
  const ReplayJudgement found = given.judge(claims);
  EXPECT_EQ(find(found, "merged_value").undecided, 4) << "two entries of KV head 0, which has two dimensions";
  EXPECT_EQ(find(found, "merged_value").outside, 12);
  EXPECT_EQ(find(found, "output").undecided, 2);
  EXPECT_EQ(find(found, "output").outside, 2);
  EXPECT_EQ(found.outputs.certain, (std::vector<char>{false, true}));
}

struct PeriodicCase : ReplayCase {
  PeriodicCase() : ReplayCase(layer_of(11), {test::kHost, {}, {}, {}, periodic()}, kBudget, kSteps) {}
  static KeepKv periodic() {
    KeepKv merge = test::with_target(KeepKv{}, test::kMergeAll);
    merge.period = 4;
    return merge;
  }
};

TEST(LayerReplay, JudgesOutputsAfterARebuildOnlyIfItIsRecorded) {
  const PeriodicCase given;
  LayerClaims claims = claims_of(given.own);
  for (double& number : claims.output->numbers) number += 1;
  EXPECT_EQ(find(given.judge(claims), "output").outside, 6 * 24);
  const TensorAgreement output = find(given.judge(without_targets(claims)), "output");
  EXPECT_EQ(output.outside, 3 * 24) << "of the steps before the fourth";
  EXPECT_EQ(output.undecided, 3 * 24);
}

// The only rebuild's targets of KV head 1.
std::span<int64_t> rebuilt_targets(LayerClaims& claims) {
  return std::span(*claims.rebuilt_target_of).subspan(kTokens + kSteps, kTokens + kSteps);
}

TEST(LayerReplay, FindsAWrongTargetOfARebuild) {
  const PeriodicCase given;
  LayerClaims claims = claims_of(given.own);
  const std::span<int64_t> targets = rebuilt_targets(claims);
  const auto merged = std::ranges::find_if(
      targets, [&](const int64_t& target) { return target != &target - targets.data(); });
  const int64_t position = merged - targets.begin();
  for (const int64_t wrong : {kNotMerged, int64_t{-7}, position + 1000}) {
    *merged = wrong;
    const TensorAgreement found = find(given.judge(claims), "rebuilt_target_of");
    EXPECT_GE(found.outside, 1) << wrong;
    EXPECT_EQ(found.worst.value().index, (Positions{0, 1, position})) << wrong;
    EXPECT_EQ(std::ranges::count(found.outside_at, kTokens + kSteps + position), 1) << wrong;
    EXPECT_EQ(found.worst.value().claimed, static_cast<double>(wrong));
  }
}

TEST(LayerReplay, FindsATargetOfAnEntryThatIsStillToComeAtARebuild) {
  const PeriodicCase given;
  LayerClaims claims = claims_of(given.own);
  rebuilt_targets(claims).back() = 3;
  const TensorAgreement found = find(given.judge(claims), "rebuilt_target_of");
  EXPECT_EQ(found.outside, 1);
  EXPECT_EQ(found.worst.value().index, (Positions{0, 1, kTokens + kSteps - 1}));
  EXPECT_EQ(found.outside_at, Positions{2 * (kTokens + kSteps) - 1});
}

TEST(LayerReplay, ListsRebuildsBeforeTheChoicesThatDependOnThem) {
  const PeriodicCase given;
  const ReplayJudgement found = given.judge(claims_of(given.own));
  const auto rebuilt = std::ranges::find(found.agreements, "rebuilt_target_of", &TensorAgreement::tensor);
  const auto output = std::ranges::find(found.agreements, "output", &TensorAgreement::tensor);
  EXPECT_LT(rebuilt, output);
}

// Nothing is similar enough to merge, so that a selection alone can be wrong.
TEST(LayerReplay, FindsAWrongSelectionOfARebuild) {
  KeepKv merge = test::with_target(KeepKv{}, {Decimal{1, 0}});
  merge.period = 4;
  const ReplayCase given(layer_of(11), {test::kHost, {}, {}, {}, merge}, kBudget, kSteps);
  LayerClaims claims = claims_of(given.own);
  EXPECT_EQ(find(given.judge(claims), "rebuilt_target_of").outside, 0);
  const std::span<int64_t> targets = rebuilt_targets(claims);
  const auto dropped = std::ranges::find(targets, kNotMerged);
  *dropped = dropped - targets.begin();  // one kept entry too many
  const TensorAgreement found = find(given.judge(claims), "rebuilt_target_of");
  EXPECT_EQ(found.outside, 1);
  EXPECT_EQ(found.worst.value().index.size(), 3u);
  EXPECT_EQ(found.worst.value().index[1], 1) << "KV head";
  EXPECT_EQ(found.outside_at, Positions{kTokens + kSteps + found.worst.value().index[2]});
  std::ranges::fill(targets, kNotMerged);  // nothing is kept
  const TensorAgreement nothing = find(given.judge(claims), "rebuilt_target_of");
  ASSERT_FALSE(nothing.outside_at.empty());
  EXPECT_GE(std::ranges::min(nothing.outside_at), kTokens + kSteps) << "of KV head 1 alone";
}

TEST(LayerReplay, FindsAWrongTargetOfThePrompt) {
  for (const MergeOrder order : {MergeOrder::evict_first, MergeOrder::merge_first}) {
    KeepKv merge = test::with_target(KeepKv{}, test::kMergeAll);
    merge.order = order;
    const ReplayCase given(layer_of(9), {H2o{6, 2, 4}, {}, {}, {}, merge}, kBudget, kSteps);
    const LayerClaims right = claims_of(given.own);
    EXPECT_EQ(find(given.judge(right), "target_of").outside, 0);
    const auto merged = std::ranges::find_if(
        *right.target_of, [&](const int64_t& target) { return target != &target - right.target_of->data(); });
    const int64_t position = merged - right.target_of->begin();
    for (const int64_t wrong : {kNotMerged, int64_t{-7}, int64_t{1000}, int64_t{kTokens - 1}}) {
      LayerClaims claims = right;
      (*claims.target_of)[position] = wrong;
      const TensorAgreement found = find(given.judge(claims), "target_of");
      EXPECT_GE(found.outside, 1) << wrong;
      EXPECT_EQ(found.worst.value().index, (Positions{0, position})) << wrong;
      EXPECT_EQ(std::ranges::count(found.outside_at, position), 1) << wrong;
    }
    LayerClaims claims = right;
    (*claims.target_of)[kTokens + kTokens - 1] = 0;
    const TensorAgreement always = find(given.judge(claims), "target_of");
    EXPECT_EQ(always.worst.value().index, (Positions{1, kTokens - 1})) << "always kept";
    EXPECT_EQ(always.outside_at, Positions{2 * kTokens - 1});
  }
}

TEST(LayerReplay, FollowsTheTargetsThatAreRecordedWhereTheyAreAmbiguous) {
  const AmbiguousCase given;
  LayerClaims claims = claims_of(given.own);
  const int64_t own = claims.target_of->front(), other = own == 1 ? 2 : 1;
  claims.target_of->front() = other;
  const ReplayJudgement found = given.judge(claims);
  EXPECT_EQ(find(found, "target_of").outside, 0);
  EXPECT_EQ(find(found, "target_of").near_tie_swaps, 1);
  EXPECT_EQ(find(found, "votes").outside, 2) << "the votes are those of the other target";
  EXPECT_EQ(total(found, &TensorAgreement::undecided), 0);
  EXPECT_EQ(found.outputs.certain, (std::vector<char>{true, true}));
}

// In KV head 1 entry 2 is clearly not the nearest, unless cosines were computed by a
// search with large errors.
TEST(LayerReplay, JudgesTargetsOfThePromptByTheArithmeticOfTheSearchAlone) {
  AmbiguousCase given;
  LayerClaims claims = claims_of(given.own);
  int64_t& target = (*claims.target_of)[claims.target_of->size() / 2];
  ASSERT_EQ(target, 1);
  target = 2;
  EXPECT_EQ(find(given.judge(claims), "target_of").outside, 1);
  given.implementation.arithmetic.attention.tensor_sums = 0.2;
  EXPECT_EQ(find(given.judge(claims), "target_of").outside, 1);
  given.implementation.arithmetic.nearest_keys.tensor_sums = 0.2;
  EXPECT_EQ(find(given.judge(claims), "target_of").outside, 0);
}

TEST(LayerReplay, JudgesTargetsOfStepsByTheArithmeticOfTheirSearchAlone) {
  ReplayCase given(layer_of(9), kKeepKv, kBudget, kSteps);
  LayerClaims claims = claims_of(given.own);
  claims.merged_into->front() = claims.merged_into->front() == 0 ? 1 : 0;  // these two are always kept
  EXPECT_GE(find(given.judge(claims), "merged_into").outside, 1);
  given.implementation.arithmetic.nearest_keys.tensor_sums = 2;
  EXPECT_GE(find(given.judge(claims), "merged_into").outside, 1);
  given.implementation.arithmetic.nearest_key.tensor_sums = 2;
  EXPECT_EQ(find(given.judge(claims), "merged_into").outside, 0);
}

TEST(LayerReplay, LeavesUndecidedWhatIsClaimedOfAKeptSetThatCannotBeFollowed) {
  const ReplayCase given(layer_of(12), kKeepKv, kBudget, kSteps);
  LayerClaims claims = claims_of(given.own);
  (*claims.kept)[0].front() = -5;
  const ReplayJudgement found = given.judge(claims, given.own.prompt.kept);
  EXPECT_EQ(find(found, "votes").undecided, kBudget);
  EXPECT_EQ(find(found, "merged_key").undecided, 6 * kBudget);
  EXPECT_EQ(total(found, &TensorAgreement::outside), 0);
  claims.votes->numbers.back() += 1;
  EXPECT_EQ(find(given.judge(claims, given.own.prompt.kept), "votes").outside, 1) << "KV head 1 is known";
}

TEST(LayerReplay, NeverAcceptsNan) {
  const AmbiguousCase given;
  for (const auto member :
       {&LayerClaims::votes, &LayerClaims::merged_key, &LayerClaims::merged_value, &LayerClaims::output}) {
    LayerClaims claims = claims_of(given.own);
    (claims.*member)->numbers.front() = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(total(given.judge(claims), &TensorAgreement::outside), 1);
  }
}

TEST(LayerReplay, LeavesUndecidedTheMetricsOfAnUncertainKvHeadAndOfItsStep) {
  const AmbiguousCase given;
  const LayerClaims partial = without_targets(claims_of(given.own));
  LayerReplay replay(given.layer, given.implementation, given.own.prompt, given.errors, given.own.prompt.kept,
                     partial);
  ReplayedOutputs outputs(given.layer.shape, 1);
  MetricErrors metrics(given.layer, given.implementation);
  replay.run([&](const AttendedCache& attended) {
    outputs.add(attended);
    metrics.add(attended);
  });
  LayerClaims claims;
  claims.kept_mass = claims.perturbation = RealClaim{{1, 2}, {9, 9}, Dtype::f64};
  claims.layer_perturbation = RealClaim{{1}, {9}, Dtype::f64};
  for (const TensorAgreement& tensor : metrics.judge(replay.record(&outputs), outputs.certain, claims)) {
    EXPECT_EQ(tensor.undecided, 1) << tensor.tensor << " of KV head 0, or of all heads together";
    EXPECT_EQ(tensor.outside, tensor.elements - 1) << tensor.tensor;
  }
}

// A dump of choices alone, of scores that have no bounds on merged numbers that are not known: no eviction
// can be found wrong, so that none is evidence.
TEST(LayerReplay, SaysNothingOfEvictionsThatItCouldNeverFindWrong) {
  const Policy policy = parse_policy("h2o:window=6+obcache-joint+keepkv:threshold=none");
  const ReplayCase given(layer_of(9), policy, kBudget, kSteps);
  const LayerClaims all = claims_of(given.own);
  LayerClaims choices;
  choices.kept = all.kept;
  choices.evicted = all.evicted;
  choices.merged_into = all.merged_into;
  const TensorAgreement right = find(given.judge(choices), "evicted");
  EXPECT_EQ(right.elements, 2 * kSteps);
  EXPECT_EQ(right.judged, 0);
  EXPECT_EQ(right.outside + right.undecided, 0);
  const TensorAgreement known = find(given.judge(all), "evicted");
  EXPECT_EQ(known.judged, 2 * kSteps) << "merged numbers that are claimed bound the scores";
}

}  // namespace
}  // namespace kvbound::sim::layer_replay_test
