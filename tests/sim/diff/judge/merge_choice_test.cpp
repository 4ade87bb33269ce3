#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/core/decimal.hpp>
#include <kvbound/reference/merging/cam.hpp>
#include <kvbound/sim/diff/judge/merge_choice.hpp>

#include "support/trace_layer.hpp"

namespace kvbound::sim::merge_choice_test {
namespace {

using reference::Arithmetic;

constexpr SimilarTarget kAlways{std::nullopt};
SimilarTarget above(const char* threshold) { return {*parse_decimal(threshold)}; }

// A cache of keys in the plane with given angles and different lengths; entry i is at position 10 (i + 1).
struct Plane {
  explicit Plane(const std::vector<double>& angles,
                 const Arithmetic& arithmetic_ = reference::double_precision())
      : arithmetic(arithmetic_), policy{H2o{}, {}, {}, {}, D2o{}} {
    layer.shape = {1, 1, 2, 1};
    layer.keys = layer.values = Tensor(1, 10 * (std::ssize(angles) + 1), 2);
    for (size_t i = 0; i < angles.size(); ++i) {
      const double length = 1 + static_cast<double>(i);
      const std::vector<double> key{length * std::cos(angles[i]), length * std::sin(angles[i])};
      cache.append(10 * (std::ssize(cache.positions) + 1), key, key);
    }
  }

  // Judges the claimed target of the first entry, which is evicted.
  TargetJudgement judge(const SimilarTarget& target, const std::optional<int64_t>& claimed,
                        bool certain = true) const {
    MergedErrors errors(layer, policy, arithmetic, Dtype::f64, 0);
    errors.put(key_off_at, {std::vector<double>(2, key_off), std::vector<double>(2), {}});
    return judge_target({{4, 1}, 0, cache, errors, arithmetic, certain}, target, claimed);
  }

  Arithmetic arithmetic;
  Policy policy;
  traces::Layer layer;
  reference::HeadCache cache;
  int64_t key_off_at = 10;
  double key_off = 0;
};

bool is_own(const TargetJudgement& found) {
  return !found.choice.offence && !found.choice.near_tie && !found.choice.undecided && found.choice.judged;
}

TEST(MergeChoice, AcceptsTheNearestKeyAndRejectsAnyOther) {
  const Plane plane({0, 0.5, 0.4, 2});
  EXPECT_TRUE(is_own(plane.judge(kAlways, 30)));
  EXPECT_EQ(plane.judge(kAlways, 30).choice.teacher_forced, 30);
  for (const int64_t other : {20, 40}) {
    const TargetJudgement found = plane.judge(kAlways, other);
    ASSERT_TRUE(found.choice.offence) << other;
    EXPECT_EQ(found.choice.teacher_forced, other) << "it is followed all the same";
    EXPECT_EQ(found.choice.offence->claimed, static_cast<double>(other));
    EXPECT_EQ(found.choice.offence->expected, 30);
    EXPECT_EQ(found.choice.offence->index, (std::vector<int64_t>{4, 1}));
    EXPECT_TRUE(found.certain);
  }
  EXPECT_EQ(
      plane.judge(kAlways, 20).choice.offence->note,
      "step 4, KV head 1: position 10 merged with 20 rather than merging with 30: the largest cosine is "
      "0.921060994, its own 0.877582562");
}

TEST(MergeChoice, AcceptsTheSecondNearestOnlyWhereRoundingExplainsIt) {
  const std::vector<double> angles{0, 0.5, -0.5 - 1e-8};
  const TargetJudgement exact = Plane(angles).judge(kAlways, 30);
  EXPECT_TRUE(exact.choice.offence);
  EXPECT_FALSE(exact.choice.near_tie);
  const TargetJudgement single = Plane(angles, reference::single_precision()).judge(kAlways, 30);
  EXPECT_FALSE(single.choice.offence);
  EXPECT_TRUE(single.choice.near_tie);
  EXPECT_EQ(single.choice.teacher_forced, 30);
  EXPECT_TRUE(single.certain);
}

TEST(MergeChoice, CountsWhatEarlierMergesMadeOfBothKeys) {
  for (const int64_t position : {10, 20, 30}) {
    Plane plane({0, 0.5, -0.52});
    plane.key_off_at = position;
    EXPECT_TRUE(plane.judge(kAlways, 30).choice.offence);
    plane.key_off = 0.1;
    EXPECT_TRUE(plane.judge(kAlways, 30).choice.near_tie) << position;
  }
}

TEST(MergeChoice, RejectsDroppingWhatIsNearAndMergingWhatIsNot) {
  const Plane plane({0, 0.5});  // a cosine of 0.8776
  const TargetJudgement dropped = plane.judge(above("0.8"), kNoPosition);
  ASSERT_TRUE(dropped.choice.offence);
  EXPECT_EQ(dropped.choice.teacher_forced, kNoPosition);
  EXPECT_NE(dropped.choice.offence->note.find("position 10 was dropped rather than merging with 20"),
            std::string::npos)
      << dropped.choice.offence->note;
  EXPECT_TRUE(is_own(plane.judge(above("0.9"), kNoPosition)));
  const TargetJudgement merged = plane.judge(above("0.9"), 20);
  ASSERT_TRUE(merged.choice.offence);
  EXPECT_NE(merged.choice.offence->note.find("merged with 20 rather than being dropped"), std::string::npos)
      << merged.choice.offence->note;
}

TEST(MergeChoice, AcceptsEitherAtTheThreshold) {
  const Plane plane({0, std::acos(0.8) - 1e-9}, reference::single_precision());
  const TargetJudgement own = plane.judge(above("0.8"), 20), dropped = plane.judge(above("0.8"), kNoPosition);
  EXPECT_FALSE(own.choice.near_tie || own.choice.offence);
  EXPECT_TRUE(dropped.choice.near_tie);
  EXPECT_FALSE(dropped.choice.offence);
  EXPECT_FALSE(own.choice.judged || dropped.choice.judged) << "no other choice could be wrong";
  const Plane further({0, std::acos(0.8) - 1e-9, 2}, reference::single_precision());
  EXPECT_TRUE(is_own(further.judge(above("0.8"), 20)));
  EXPECT_TRUE(further.judge(above("0.8"), kNoPosition).choice.judged);
  EXPECT_EQ(dropped.choice.teacher_forced, kNoPosition);
}

TEST(MergeChoice, RejectsAPositionThatIsNotThereAndFollowsItsOwn) {
  const Plane plane({0, 0.5, 0.4});
  for (const int64_t claimed : {10, 11, 40, -2}) {  // the first is the evicted entry itself
    const TargetJudgement found = plane.judge(kAlways, claimed, false);
    ASSERT_TRUE(found.choice.offence) << claimed << ": an uncertain cache has it neither";
    EXPECT_EQ(found.choice.teacher_forced, 30);
    EXPECT_EQ(found.choice.offence->note, "step 4, KV head 1: position 10 merged with " +
                                              std::to_string(claimed) + ", which is not in the cache");
  }
}

TEST(MergeChoice, LeavesUndecidedWhatOnlyAnotherCacheCouldExplain) {
  const Plane plane({0, 0.5, 0.4});
  const TargetJudgement found = plane.judge(kAlways, 20, false);
  EXPECT_FALSE(found.choice.offence);
  EXPECT_FALSE(found.choice.judged);
  EXPECT_TRUE(found.choice.undecided);
  EXPECT_EQ(found.choice.teacher_forced, 20);
  EXPECT_FALSE(found.certain) << "and so it remains";
  const TargetJudgement own = plane.judge(kAlways, 30, false);
  EXPECT_FALSE(own.choice.near_tie || own.choice.offence || own.choice.undecided);
  EXPECT_FALSE(own.choice.judged) << "no other choice could be found wrong";
}

TEST(MergeChoice, FollowsItsOwnWhereNothingIsClaimedAndKnowsWhetherThatIsCertain) {
  const Plane plane({0, 0.5, 0.4});
  const TargetJudgement found = plane.judge(kAlways, std::nullopt);
  EXPECT_EQ(found.choice.teacher_forced, 30);
  EXPECT_FALSE(found.choice.judged);
  EXPECT_TRUE(found.certain);
  EXPECT_FALSE(plane.judge(kAlways, std::nullopt, false).certain);
  EXPECT_EQ(plane.judge(above("0.99"), std::nullopt).choice.teacher_forced, kNoPosition);
  EXPECT_TRUE(plane.judge(above("0.99"), std::nullopt).certain);
  EXPECT_FALSE(
      Plane({0, 0.5, -0.5 - 1e-8}, reference::single_precision()).judge(kAlways, std::nullopt).certain)
      << "it may have merged with either";
  EXPECT_FALSE(Plane({0, std::acos(0.8)}).judge(above("0.8"), std::nullopt).certain)
      << "it may have been dropped";
}

// A cache of four positions. The first entry is evicted, and with a probability of 1/2 its value is
// spread over the next two.
struct Spread {
  explicit Spread(int64_t position = 3) {
    layer.shape = {1, 1, 2, 1};
    layer.keys = layer.values = Tensor(1, 2000, 2);
    for (const int64_t at : {position, int64_t{1007}, int64_t{1008}, int64_t{1009}}) {
      cache.append(at, std::vector{1.0, 0.0}, std::vector{0.0, 1.0});
    }
    attention = {{0.2, 0.3, 0.5, 0}, std::vector<double>(4)};
  }

  TargetJudgement judge(const std::optional<int64_t>& claimed, bool certain = true) const {
    const Arithmetic arithmetic = reference::double_precision();
    const Policy policy{H2o{}, {}, {}, {}, kCam};
    const MergedErrors errors(layer, policy, arithmetic, Dtype::f64, 0);
    return judge_spread({{4, 1}, 0, cache, errors, arithmetic, certain}, kCam, attention, claimed);
  }

  static constexpr Cam kCam{2, 5};
  traces::Layer layer;
  reference::HeadCache cache;
  MeanAttention attention;
};

// A position for which CaM's draw spreads the value, or does not.
int64_t position_that(bool is_spread) {
  int64_t position = 0;
  while (reference::spreads(0.5, Spread::kCam.seed, 1, position) != is_spread) ++position;
  return position;
}

TEST(SpreadAgreement, AcceptsWhatTheDrawSaysAndRejectsTheOpposite) {
  const Spread drawn(position_that(true)), not_drawn(position_that(false));
  EXPECT_TRUE(is_own(drawn.judge(1007)));
  EXPECT_TRUE(is_own(not_drawn.judge(kNoPosition)));
  const TargetJudgement dropped = drawn.judge(kNoPosition);
  ASSERT_TRUE(dropped.choice.offence);
  EXPECT_EQ(dropped.choice.teacher_forced, 1007);
  EXPECT_NE(dropped.choice.offence->note.find("is spread from 1007 on"), std::string::npos)
      << dropped.choice.offence->note;
  const TargetJudgement spread = not_drawn.judge(1007);
  ASSERT_TRUE(spread.choice.offence);
  EXPECT_EQ(spread.choice.teacher_forced, kNoPosition);
  EXPECT_NE(spread.choice.offence->note.find("is spread over no entry"), std::string::npos)
      << spread.choice.offence->note;
}

TEST(SpreadAgreement, RejectsAnyButTheFirstOfThoseThatFollow) {
  const Spread given(position_that(true));
  for (const int64_t claimed : {1008, 1009, 1010, -2}) {
    const TargetJudgement found = given.judge(claimed);
    ASSERT_TRUE(found.choice.offence) << claimed;
    EXPECT_EQ(found.choice.teacher_forced, 1007);
  }
}

TEST(SpreadAgreement, AcceptsEitherWhereAttentionIsTooFarOffForTheDraw) {
  Spread given(position_that(true));
  given.attention.errors[0] = 0.2;  // the probability may be anything from 0 to 1
  for (const int64_t claimed : {int64_t{1007}, kNoPosition}) {
    const TargetJudgement found = given.judge(claimed);
    EXPECT_FALSE(found.choice.offence);
    EXPECT_TRUE(found.choice.near_tie);
    EXPECT_EQ(found.choice.teacher_forced, claimed);
    EXPECT_TRUE(found.certain);
  }
  EXPECT_FALSE(given.judge(std::nullopt).certain);
  given.attention.errors[0] = 0;
  EXPECT_TRUE(given.judge(std::nullopt).certain);
  EXPECT_EQ(given.judge(std::nullopt).choice.teacher_forced, 1007);
  EXPECT_FALSE(given.judge(std::nullopt).choice.judged);
}

TEST(SpreadAgreement, LeavesUndecidedWhatOnlyAnotherCacheCouldExplain) {
  const TargetJudgement found = Spread(position_that(true)).judge(kNoPosition, false);
  EXPECT_FALSE(found.choice.offence);
  EXPECT_TRUE(found.choice.undecided);
  EXPECT_FALSE(found.choice.judged);
  EXPECT_FALSE(found.certain);
}

TEST(SpreadAgreement, RejectsSpreadingTheNewestEntry) {
  const Spread given(1500);
  EXPECT_TRUE(is_own(given.judge(kNoPosition)));
  EXPECT_TRUE(given.judge(1007).choice.offence);
}

}  // namespace
}  // namespace kvbound::sim::merge_choice_test
