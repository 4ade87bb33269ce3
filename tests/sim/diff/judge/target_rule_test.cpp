#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/core/decimal.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>
#include <kvbound/sim/diff/judge/target_rule.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::target_rule_test {
namespace {

using reference::Arithmetic;

SimilarTarget above(const char* threshold) { return {*parse_decimal(threshold)}; }
SimilarTarget always() { return {std::nullopt}; }

// A key of length 1 in the plane, so that cosines of keys are those of the angles between them.
std::vector<double> at_angle(double radians) { return {std::cos(radians), std::sin(radians)}; }

bool is_range(const MemberRange& range, int64_t least, int64_t most) {
  return range.least == least && range.most == most;
}

TEST(TargetRule, ForbidsWhoIsClearlyNotTheNearest) {
  const std::vector<double> cosines{0.9, 0.7, 0.5}, errors{0.05, 0.05, 0.05};
  const TargetRule rule(always(), cosines, errors);
  EXPECT_TRUE(rule.may_merge_with(0));
  EXPECT_FALSE(rule.may_merge_with(1));
  EXPECT_FALSE(rule.may_merge_with(2));
  EXPECT_FALSE(rule.may_be_dropped());
}

TEST(TargetRule, AllowsWhomOnlyRoundingTellsFromTheNearest) {
  const std::vector<double> cosines{0.875, 0.75, 0.5}, errors{0.0625, 0.0625, 0.0625};
  const TargetRule rule(always(), cosines, errors);
  EXPECT_TRUE(rule.may_merge_with(1)) << "both errors together are just the distance";
  const std::vector<double> smaller{0.0625, 0.0625 - 0x1p-50, 0.0625};
  EXPECT_FALSE(TargetRule(always(), cosines, smaller).may_merge_with(1));
}

TEST(TargetRule, CountsTheErrorsOfThoseWhoWereNotChosen) {
  const std::vector<double> cosines{0.9, 0.7}, one_is_off{0.3, 0.0};
  EXPECT_TRUE(TargetRule(always(), cosines, one_is_off).may_merge_with(1)) << "0.9 may be 0.6";
  EXPECT_TRUE(TargetRule(always(), cosines, one_is_off).may_merge_with(0));
}

TEST(TargetRule, AllowsBothSidesOfAThresholdWithinItsErrorAndOneSideBeyond) {
  const SimilarTarget target = above("0.75");
  const auto outcomes = [&](double cosine) {
    const std::vector<double> cosines{cosine}, errors{0.0625};
    const TargetRule rule(target, cosines, errors);
    return std::pair(rule.may_merge_with(0), rule.may_be_dropped());
  };
  EXPECT_EQ(outcomes(0.875), std::pair(true, false));
  EXPECT_EQ(outcomes(0.8125), std::pair(true, true)) << "it may be the threshold, which is not above itself";
  EXPECT_EQ(outcomes(0.75), std::pair(true, true));
  EXPECT_EQ(outcomes(0.6875), std::pair(false, true)) << "it is the threshold at most";
  EXPECT_EQ(outcomes(0.5), std::pair(false, true));
}

TEST(TargetRule, MergesNothingAboveAThresholdOfOneHoweverCosinesErr) {
  const std::vector<double> cosines{1.0, 0.999}, errors{0.5, 0.5};
  const TargetRule rule(above("1"), cosines, errors);
  EXPECT_FALSE(rule.may_merge_with(0));
  EXPECT_FALSE(rule.may_merge_with(1));
  EXPECT_TRUE(rule.may_be_dropped());
}

TEST(TargetRule, DropsAnEntryWithoutOthers) { EXPECT_TRUE(TargetRule(always(), {}, {}).may_be_dropped()); }

TEST(MemberRanges, AreExactWhereCosinesAreClear) {
  Matrix keys(0, 2);
  for (const double angle : {0.0, 1.5, 0.1, 1.4, -0.2}) keys.append_row(at_angle(angle));
  const std::vector<MemberRange> ranges =
      member_ranges(keys, {0, 1}, always(), reference::single_precision());
  EXPECT_TRUE(is_range(ranges[0], 2, 2));
  EXPECT_TRUE(is_range(ranges[1], 1, 1));
}

TEST(MemberRanges, LeaveOpenWhereTwoAreEquallyNear) {
  Matrix keys(0, 2);
  for (const double angle : {0.5, -0.5, 0.0, 3.0}) keys.append_row(at_angle(angle));
  const std::vector<MemberRange> ranges =
      member_ranges(keys, {0, 1, 3}, always(), reference::double_precision());
  EXPECT_TRUE(is_range(ranges[0], 0, 1));
  EXPECT_TRUE(is_range(ranges[1], 0, 1));
  EXPECT_TRUE(is_range(ranges[2], 0, 0)) << "it points the other way";
}

TEST(MemberRanges, OpenWithTheTestedImplementationsArithmetic) {
  Matrix keys(0, 2);  // cosines that are 2.5e-7 apart
  for (const double angle : {0.5, -0.5 - 5e-7, 0.0}) keys.append_row(at_angle(angle));
  EXPECT_TRUE(is_range(member_ranges(keys, {0, 1}, always(), reference::double_precision())[1], 0, 0));
  EXPECT_TRUE(is_range(member_ranges(keys, {0, 1}, always(), reference::single_precision())[1], 0, 1));
  Arithmetic stored = reference::double_precision();
  stored.input = 0x1p-9;
  EXPECT_TRUE(is_range(member_ranges(keys, {0, 1}, always(), stored)[1], 0, 1));
}

TEST(MemberRanges, LeaveOpenWhetherWhoIsAtTheThresholdIsDropped) {
  Matrix keys(0, 2);
  keys.append_row(std::vector{1.0, 0.0});
  keys.append_row(std::vector{0.6, 0.8});  // a cosine of 0.6
  const Arithmetic arithmetic = reference::double_precision();
  EXPECT_TRUE(is_range(member_ranges(keys, {0}, above("0.6"), arithmetic)[0], 0, 1));
  EXPECT_TRUE(is_range(member_ranges(keys, {0}, above("0.59"), arithmetic)[0], 1, 1));
  EXPECT_TRUE(is_range(member_ranges(keys, {0}, above("0.61"), arithmetic)[0], 0, 0));
}

TEST(MemberRanges, TakeTheCosineOfAZeroKeyForZeroUnlessStoringItMayHaveMadeItSo) {
  Matrix keys(0, 2);
  keys.append_row(std::vector{0.0, 0.0});
  keys.append_row(at_angle(0.4));
  keys.append_row(at_angle(0.5));
  Arithmetic arithmetic = reference::double_precision();
  const std::vector<MemberRange> exact = member_ranges(keys, {0, 1}, always(), arithmetic);
  EXPECT_TRUE(is_range(exact[0], 0, 0));
  EXPECT_TRUE(is_range(exact[1], 1, 1));
  arithmetic.input_floor = 0x1p-24;
  const std::vector<MemberRange> stored = member_ranges(keys, {0, 1}, always(), arithmetic);
  EXPECT_TRUE(is_range(stored[0], 0, 1)) << "it may have any direction";
  EXPECT_TRUE(is_range(stored[1], 0, 1));
}

TEST(MemberRanges, OfAZeroKeyThatLeavesAreOpenForAll) {
  Matrix keys(0, 2);
  keys.append_row(at_angle(0.4));
  keys.append_row(at_angle(2.0));
  keys.append_row(std::vector{0.0, 0.0});
  const std::vector<MemberRange> ranges =
      member_ranges(keys, {0, 1}, always(), reference::double_precision());
  EXPECT_TRUE(is_range(ranges[0], 0, 1)) << "0 is as near to one as to the other";
  EXPECT_TRUE(is_range(ranges[1], 0, 1));
  const std::vector<MemberRange> none =
      member_ranges(keys, {0, 1}, above("0.1"), reference::double_precision());
  EXPECT_TRUE(is_range(none[0], 0, 0));
  EXPECT_TRUE(is_range(none[1], 0, 0));
}

TEST(MemberRanges, EncloseTheReferencesMembersAndThoseOfRoundedKeys) {
  test::Random random(11);
  int64_t open = 0, merged = 0;
  for (int round = 0; round < 30; ++round) {
    const int64_t tokens = 20 + random.index(120), head_dim = 4;
    Matrix keys = random.matrix(tokens, head_dim);
    // Every third key is nearly equal to the one before it.
    for (int64_t i = 1; i < tokens; i += 3) {
      for (int64_t c = 0; c < head_dim; ++c) keys(i, c) = keys(i - 1, c) * (1 + 1e-3 * random.normal());
    }
    std::vector<int64_t> kept;
    for (int64_t i = 0; i < tokens; i += 4) kept.push_back(i);
    const SimilarTarget target = round % 2 ? above("0.8") : always();
    Matrix rounded = keys;
    for (int64_t i = 0; i < tokens; ++i) {
      for (double& x : rounded.row(i)) x *= 1 + 0x1p-9 * std::clamp(random.normal(), -1.0, 1.0);
    }
    Arithmetic arithmetic = reference::double_precision();
    arithmetic.input = 0x1p-9;
    const std::vector<MemberRange> ranges = member_ranges(keys, kept, target, arithmetic);
    for (const Matrix* of : {&keys, &rounded}) {
      std::vector<int64_t> members(kept.size());
      for (const MergeCluster& cluster : reference::evict_first(*of, kept, target).clusters) {
        members[cluster.into / 4] = std::ssize(cluster.from);
        merged += std::ssize(cluster.from);
      }
      for (size_t j = 0; j < kept.size(); ++j) {
        EXPECT_LE(ranges[j].least, members[j]);
        EXPECT_GE(ranges[j].most, members[j]);
        open += ranges[j].least < ranges[j].most;
      }
    }
  }
  EXPECT_GT(merged, 0);
  EXPECT_GT(open, 0) << "rounding was to matter";
}

TEST(StorageErrors, AreRelativeAndAFloor) {
  Arithmetic arithmetic = reference::double_precision();
  arithmetic.input = 0.25;
  arithmetic.input_floor = 0.5;
  EXPECT_EQ(storage_errors(std::vector<double>{0, -2, 4}, arithmetic), (std::vector<double>{0.5, 1, 1.5}));
}

}  // namespace
}  // namespace kvbound::sim::target_rule_test
