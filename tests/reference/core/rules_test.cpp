// The properties that core derives for each policy component, as the method's definition has them.
#include <gtest/gtest.h>

#include <kvbound/reference/core/allocation_rules.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/selection_rules.hpp>

namespace kvbound::rules_test {
namespace {

using Positions = std::vector<int64_t>;

TEST(HostRules, OfSnapKvKeepTheWindowAndPoolTheMean) {
  const HostRules rules = rules_of(Host(SnapKv{4, 3}), 10, 6);
  EXPECT_EQ(rules.window, 4);
  EXPECT_EQ(rules.scored, 6);
  EXPECT_EQ(rules.pool, 3);
  EXPECT_EQ(rules.window_reduction, WindowReduction::mean);
  EXPECT_EQ(rules.step_update, StepUpdate::none);
  EXPECT_FALSE(rules.evicts);
  EXPECT_TRUE(rules.ranks());
  EXPECT_EQ(rules.always_kept(10), (Positions{6, 7, 8, 9}));
}

TEST(HostRules, OfH2oAccumulateAndKeepSinksAndRecent) {
  const HostRules rules = rules_of(Host(H2o{4, 1, 2}), 10, 6);
  EXPECT_EQ(rules.window, 4);
  EXPECT_EQ(rules.scored, 10);
  EXPECT_EQ(rules.pool, 1);
  EXPECT_EQ(rules.window_reduction, WindowReduction::sum);
  EXPECT_EQ(rules.step_update, StepUpdate::accumulate);
  EXPECT_TRUE(rules.evicts);
  EXPECT_EQ(rules.always_kept(10), (Positions{0, 8, 9}));
  EXPECT_EQ(rules_of(Host(H2o{4, 0, {}}), 10, 6).recent, 4) << "as many as the window";
}

TEST(HostRules, OfTovaReplaceTheScoresByTheLastQuerys) {
  const HostRules rules = rules_of(Host(Tova{2}), 10, 6);
  EXPECT_EQ(rules.window, 1);
  EXPECT_EQ(rules.scored, 10);
  EXPECT_EQ(rules.step_update, StepUpdate::replace);
  EXPECT_TRUE(rules.evicts);
  EXPECT_EQ(rules.always_kept(10), (Positions{0, 1}));
}

TEST(HostRules, OfStreamingLlmRankNothingAndFillTheBudgetWithTheNewest) {
  const HostRules rules = rules_of(Host(StreamingLlm{2}), 10, 5);
  EXPECT_FALSE(rules.ranks());
  EXPECT_EQ(rules.scored, 0);
  EXPECT_EQ(rules.step_update, StepUpdate::none);
  EXPECT_TRUE(rules.evicts);
  EXPECT_TRUE(rules.fills_recent);
  EXPECT_EQ(rules.always_kept(10), (Positions{0, 1, 7, 8, 9}));
}

TEST(HostRules, OfRandomRankNothingAndDrawTheRestOfTheBudget) {
  for (const int64_t budget : {0, 5}) {
    const HostRules rules = rules_of(Host(RandomHost{7, 2, 3}), 10, budget);
    EXPECT_FALSE(rules.ranks());
    EXPECT_EQ(rules.scored, 0);
    EXPECT_EQ(rules.step_update, StepUpdate::none);
    EXPECT_FALSE(rules.evicts || rules.fills_recent);
    EXPECT_EQ(rules.seed, 7);
    EXPECT_EQ(rules.always_kept(10), (Positions{0, 1, 7, 8, 9}));
  }
  for (const Host& host : {Host(SnapKv{}), Host(H2o{}), Host(Tova{}), Host(StreamingLlm{})}) {
    EXPECT_FALSE(rules_of(host, 10, 5).seed.has_value());
  }
}

TEST(HostRules, MoveWithTheNewestPosition) {
  const HostRules rules = rules_of(Host(H2o{4, 1, 2}), 10, 6);
  EXPECT_TRUE(rules.always_keeps(8, 9));
  EXPECT_FALSE(rules.always_keeps(8, 10));
  EXPECT_TRUE(rules.always_keeps(0, 1000));
}

TEST(ScoreRules, TellWhatIsMeasuredInWhichSpaceAndHowItReduces) {
  EXPECT_EQ(rules_of(AttentionScore()).change, std::nullopt);
  EXPECT_EQ(rules_of(AttentionScore()).group, GroupReduction::mean);
  EXPECT_EQ(rules_of(AttentionScore()).space, Space::head);
  EXPECT_EQ(rules_of(ObcacheValue()).change, Change::value);
  EXPECT_EQ(rules_of(ObcacheKey()).change, Change::key);
  EXPECT_EQ(rules_of(ObcacheJoint()).change, Change::joint);
  EXPECT_EQ(rules_of(ExactRemoval()).change, Change::exact);
  for (const Score& score :
       {Score(ObcacheValue{{Space::projected}}), Score(ObcacheKey{{Space::projected}}),
        Score(ObcacheJoint{{Space::projected}}), Score(ExactRemoval{{Space::projected}})}) {
    EXPECT_EQ(rules_of(score).space, Space::projected);
    EXPECT_EQ(rules_of(score).group, GroupReduction::sum);
  }
}

TEST(SelectionRules, TellWhoseStagesAreFormedAndWhichGoOnInDecoding) {
  EXPECT_TRUE(rules_of(TopK()).keeps_largest_scores);
  EXPECT_FALSE(rules_of(TopK()).two_stage);
  Critical critical;
  critical.epsilon = 0.25;
  ASSERT_TRUE(rules_of(critical).two_stage);
  EXPECT_EQ(rules_of(critical).two_stage->epsilon, 0.25);
  EXPECT_TRUE(rules_of(critical).in_decoding);
  EXPECT_TRUE(rules_of(ThetaSweep()).two_stage);
  EXPECT_FALSE(rules_of(ThetaSweep()).in_decoding) << "it needs the prompt's window";
  EXPECT_TRUE(rules_of(Greedy()).is_greedy);
  for (const Selection& selection : {Selection(Critical()), Selection(ThetaSweep()), Selection(Greedy())}) {
    EXPECT_FALSE(rules_of(selection).keeps_largest_scores);
  }
}

TEST(AllocationRules, TellWhatIsUnequal) {
  EXPECT_FALSE(rules_of(Uniform()).across_heads || rules_of(Uniform()).across_layers);
  EXPECT_TRUE(rules_of(AdaKv()).across_heads);
  EXPECT_FALSE(rules_of(AdaKv()).across_layers);
  EXPECT_TRUE(rules_of(Pyramid()).across_layers);
  EXPECT_FALSE(rules_of(Pyramid()).across_heads);
}

TEST(MergeRules, TellWhatAMethodNeedsAndLeavesBehind) {
  EXPECT_FALSE(rules_of(NoMerge()).merges);
  const MergeRules keep_kv = rules_of(KeepKv());
  EXPECT_TRUE(keep_kv.merges && keep_kv.votes && keep_kv.averages());
  EXPECT_EQ(keep_kv.key, MergedKey::min_norm);
  EXPECT_EQ(keep_kv.gqa, MergeGqa::joint);
  const MergeRules convex = rules_of(ConvexMerge());
  EXPECT_TRUE(convex.merges && convex.prediction && !convex.votes);
  EXPECT_EQ(convex.key, MergedKey::convex);
  for (const Merge& merge : {Merge(D2o()), Merge(KvMerger())}) {
    EXPECT_TRUE(rules_of(merge).target);
    EXPECT_FALSE(rules_of(merge).votes || rules_of(merge).prediction || rules_of(merge).key);
  }
  EXPECT_TRUE(rules_of(Cam()).merges && rules_of(Cam()).spread == Cam());
  EXPECT_FALSE(rules_of(Cam()).target);
}

TEST(MergeRules, CountStepsUntilARebuild) {
  KeepKv merge;
  EXPECT_FALSE(rules_of(merge).rebuilds_at(0));
  merge.period = 3;
  const MergeRules rules = rules_of(merge);
  EXPECT_FALSE(rules.rebuilds_at(0) || rules.rebuilds_at(1) || rules.rebuilds_at(3));
  EXPECT_TRUE(rules.rebuilds_at(2) && rules.rebuilds_at(5));
}

TEST(MergeRules, AveragePastQueriesUnlessTheCurrentOnePredicts) {
  KeepKv merge;
  merge.prediction.predict = Prediction::current;
  EXPECT_FALSE(rules_of(merge).averages());
  EXPECT_TRUE(rules_of(merge).prediction);
}

}  // namespace
}  // namespace kvbound::rules_test
