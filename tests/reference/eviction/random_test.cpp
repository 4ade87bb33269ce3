#include <algorithm>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/random.hpp>
#include <kvbound/reference/session/session.hpp>

#include "support/decoding.hpp"
#include "support/power_layer.hpp"
#include "support/session_cases.hpp"

namespace kvbound::reference::random_test {
namespace {

using namespace test;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

Policy random_host(int64_t seed, int64_t sinks, int64_t window) {
  return {RandomHost{seed, sinks, window}, {}, {}, {}, {}};
}

PromptRecord compressed(const LayerView& layer, const Policy& policy, const Positions& budgets) {
  return make_session()->compress(layer, policy, budgets);
}

// The same draws as tests/independent/draws.py makes.
TEST(SinksDrawnAndNewest, KeepTheSmallestDrawsOfTheOthers) {
  const auto kept = [](int64_t seed, int64_t layer, int64_t kv_head, int64_t budget) {
    return sinks_drawn_and_newest(10, 2, 1, budget, {seed, layer, kv_head});
  };
  EXPECT_EQ(kept(0, 0, 0, 4), (Positions{0, 1, 7, 9}));
  EXPECT_EQ(kept(0, 0, 0, 6), (Positions{0, 1, 2, 4, 7, 9}));
  EXPECT_EQ(kept(0, 0, 1, 6), (Positions{0, 1, 6, 7, 8, 9}));
  EXPECT_EQ(kept(0, 2, 1, 6), (Positions{0, 1, 3, 5, 7, 9}));
  EXPECT_EQ(kept(9, 3, 1, 6), (Positions{0, 1, 2, 3, 5, 9}));
  EXPECT_EQ(kept(0, 0, 0, 3), (Positions{0, 1, 9})) << "none of the others";
  EXPECT_EQ(kept(0, 0, 0, 10), range(0, 10)) << "all of them";
}

TEST(SinksDrawnAndNewest, OfNothingAlwaysKeptAreDrawnAlone) {
  EXPECT_EQ(sinks_drawn_and_newest(4, 0, 0, 0, {0, 0, 0}), Positions{});
  EXPECT_EQ(sinks_drawn_and_newest(4, 0, 0, 2, {0, 0, 0}), drawn_positions({0, 0, 0}, 0, 4, 2));
  EXPECT_EQ(sinks_drawn_and_newest(4, 4, 0, 4, {0, 0, 0}), range(0, 4));
  EXPECT_EQ(sinks_drawn_and_newest(4, 0, 4, 4, {0, 0, 0}), range(0, 4));
}

TEST(SinksDrawnAndNewest, NameABudgetThatDoesNotFit) {
  const auto refused = [](int64_t tokens, int64_t sinks, int64_t newest, int64_t budget) {
    return message_of<ShapeMismatch>([&] { sinks_drawn_and_newest(tokens, sinks, newest, budget, {}); });
  };
  EXPECT_EQ(refused(10, 4, 2, 5),
            "budget is 5 but it must be within 4 sinks with the newest 2 entries, and 10 prompt tokens");
  EXPECT_EQ(refused(10, 4, 2, 11),
            "budget is 11 but it must be within 4 sinks with the newest 2 entries, and 10 prompt tokens");
  EXPECT_EQ(refused(10, -1, 2, 5),
            "budget is 5 but it must be within -1 sinks with the newest 2 entries, and 10 prompt tokens");
  EXPECT_EQ(refused(10, 1, -2, 5),
            "budget is 5 but it must be within 1 sinks with the newest -2 entries, and 10 prompt tokens");
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(refused(10, huge, huge, 10),
            "budget is 10 but it must be within 9223372036854775807 sinks with the newest "
            "9223372036854775807 entries, and 10 prompt tokens");
}

RC_GTEST_PROP(SinksDrawnAndNewestProperty, KeepTheAlwaysKeptAndWithMoreBudgetAllThatIsKeptWithLess, ()) {
  const int64_t tokens = *integer(1, 60), sinks = *integer(0, tokens), newest = *integer(0, tokens - sinks);
  const int64_t more = *integer(sinks + newest, tokens), less = *integer(sinks + newest, more);
  const DrawSeed seed{*integer(0, 1000), *integer(0, 40), *integer(0, 8)};
  const Positions many = sinks_drawn_and_newest(tokens, sinks, newest, more, seed);
  const Positions few = sinks_drawn_and_newest(tokens, sinks, newest, less, seed);
  RC_ASSERT(std::ssize(many) == more);
  RC_ASSERT(std::ssize(few) == less);
  RC_ASSERT(std::ranges::is_sorted(many));
  RC_ASSERT(std::ranges::includes(many, few));
  for (int64_t i = 0; i < tokens; ++i) {
    if (i < sinks || i >= tokens - newest) RC_ASSERT(std::ranges::binary_search(few, i));
  }
}

TEST(RandomHost, KeepsWhatIsDrawnForTheLayerAndItsKvHeads) {
  const RandomLayer random({4, 2, 3, 2}, 40, 0, 2, 1);
  LayerView layer = random.view();
  const auto kept = [&](int64_t index, int64_t seed) {
    layer.index = index;
    return compressed(layer, random_host(seed, 2, 3), {12, 20}).kept;
  };
  for (const int64_t index : {0, 1, 6}) {
    for (const int64_t seed : {0, 1}) {
      const std::vector<Positions> heads{sinks_drawn_and_newest(40, 2, 3, 12, {seed, index, 0}),
                                         sinks_drawn_and_newest(40, 2, 3, 20, {seed, index, 1})};
      EXPECT_EQ(kept(index, seed), heads);
    }
  }
  EXPECT_NE(kept(0, 0), kept(1, 0)) << "another layer";
  EXPECT_NE(kept(0, 0), kept(0, 1)) << "another seed";
}

TEST(RandomHost, ScoresNothing) {
  const RandomLayer layer({4, 2, 3, 2}, 9, 0, 2, 1);
  const PromptRecord record = compressed(layer.view(), random_host(0, 2, 3), {6, 5});
  EXPECT_TRUE(record.score_positions.empty());
  EXPECT_EQ(record.score.rows(), 0);
  EXPECT_FALSE(record.stage_two_score.has_value());
  EXPECT_FALSE(record.projected_value_norms.has_value());
  EXPECT_TRUE(record.stage_one.empty());
}

TEST(RandomHost, KeepsAllThatEnters) {
  // With values 2^i and weights 1, an output is the mean of the cached values.
  const PowerLayer layer({1, 1, 1, 1, 1, 1}, {1, 2, 4, 8, 16, 32}, {{0, 0}}, 4);
  const auto session = make_session();
  const PromptRecord record = session->compress(layer.view(), random_host(0, 1, 1), Positions{2});
  EXPECT_EQ(record.kept.front(), (Positions{0, 3}));
  const StepRecord first = session->step(layer.step(0)), second = session->step(layer.step(1));
  EXPECT_DOUBLE_EQ(first.output(0, 0), (1.0 + 8 + 16) / 3);
  EXPECT_DOUBLE_EQ(second.output(0, 0), (1.0 + 8 + 16 + 32) / 4);
  EXPECT_TRUE(first.evicted.empty());
}

TEST(RandomHost, NamesOptionsThatDoNotFit) {
  const PowerLayer layer({1, 1, 1, 1}, {0, 0, 0, 0}, {{0}}, 4);
  const auto refused = [&](int64_t seed, int64_t sinks, int64_t window, int64_t budget) {
    return message_of<InvalidPolicy>(
        [&] { compressed(layer.view(), random_host(seed, sinks, window), {budget}); });
  };
  EXPECT_EQ(refused(0, 2, 2, 3),
            "budget of 3 entries is below the 2 sinks and 2 recent entries, which are always kept");
  EXPECT_EQ(
      refused(0, 2, std::numeric_limits<int64_t>::max(), 3),
      "budget of 3 entries is below the 2 sinks and 9223372036854775807 recent entries, which are always "
      "kept");
  EXPECT_EQ(refused(-1, 1, 1, 3), "seed=-1 but it must be at least 0");
  EXPECT_EQ(refused(0, -1, 1, 3), "sinks=-1 but it must be at least 0");
  EXPECT_EQ(refused(0, 1, -1, 3), "window=-1 but it must be at least 0");
  EXPECT_EQ(refused(0, 0, 0, 1), "no error") << "nothing need be always kept";
}

}  // namespace
}  // namespace kvbound::reference::random_test
