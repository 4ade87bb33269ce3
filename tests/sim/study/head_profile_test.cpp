#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/sim/study/head_profile.hpp>

#include "support/threads.hpp"
#include "support/trace_layer.hpp"

namespace kvbound::sim::head_profile_test {
namespace {

using test::message_of;

HeadProfileOptions options(int64_t window, int64_t pool, const std::string& budget) {
  return {.sinks = 2, .window = window, .pool = pool, .budget = parse_budget(budget)};
}

traces::Layer random_layer() { return test::trace_layer(test::RandomLayer({6, 2, 5, 7}, 70, 16, 3, 11)); }

// Every figure of a layer, in order.
std::vector<double> figures(const LayerProfile& profile) {
  std::vector<double> numbers;
  for (const AttentionProfile& head : profile.query_heads) {
    numbers.insert(numbers.end(), {head.sink_mass, static_cast<double>(head.top_position), head.top_mass,
                                   head.entropy, head.effective_entries, head.relative_entropy});
  }
  for (const KvHeadProfile& head : profile.kv_heads) {
    numbers.insert(numbers.end(), {head.values.effective, head.values.stable});
    for (const StoredTies& stored : head.ties)
      numbers.insert(numbers.end(), {stored.ties.share, stored.ties.tie_break});
  }
  return numbers;
}

TEST(LayerProfile, RanksWhatSnapKvRanks) {
  const traces::Layer layer = random_layer();
  const LayerProfile profile = layer_profile(layer, 3, options(8, 5, "50%"));
  EXPECT_EQ(profile.layer, 3);
  ASSERT_EQ(profile.query_heads.size(), 6u);
  ASSERT_EQ(profile.kv_heads.size(), 2u);
  const Matrix attention = reference::window_attention(layer.prompt(), 8);
  for (int64_t g = 0; g < 2; ++g) {
    const KvHeadProfile& head = profile.kv_heads[g];
    EXPECT_EQ(head.values.effective, effective_rank(layer.values.slice(g)).effective);
    ASSERT_EQ(head.ties.size(), 4u);
    for (size_t kind = 0; kind < 4; ++kind) {
      const StoredTies& stored = head.ties[kind];
      EXPECT_EQ(stored.pool, kind < 2 ? 1 : 5);
      EXPECT_EQ(stored.storage, kind % 2 == 0 ? Dtype::f64 : Dtype::bf16);
      const Matrix scores =
          reference::group_mean(reference::max_pool(attention.view().middle_cols(0, 62), stored.pool), 3);
      const std::vector<double> row(scores.row(g).begin(), scores.row(g).end());
      const ScoreTies expected = score_ties(kind % 2 == 0 ? row : rounded_to_bfloat16(row), 35 - 8);
      EXPECT_EQ(stored.ties.share, expected.share);
      EXPECT_EQ(stored.ties.tie_break, expected.tie_break);
      EXPECT_EQ(stored.ties.cut->tied, expected.cut->tied);
      EXPECT_EQ(stored.ties.cut->selected, expected.cut->selected);
    }
    EXPECT_EQ(head.ties[0].ties.share, 0);
    EXPECT_GT(head.ties[1].ties.share, 0) << "62 scores and 8 bits";
    EXPECT_GT(head.ties[2].ties.share, 0) << "neighbours that share their maximum";
  }
}

TEST(LayerProfile, OfEqualKeysTiesThroughout) {
  traces::Layer layer = random_layer();
  for (double& number : layer.keys.numbers()) number = 0.5;
  for (const KvHeadProfile& head : layer_profile(layer, 0, options(16, 1, "30")).kv_heads) {
    ASSERT_EQ(head.ties.size(), 2u) << "a pool of width 1 is none";
    for (const StoredTies& stored : head.ties) {
      EXPECT_EQ(stored.ties.share, 1);
      EXPECT_EQ(stored.ties.cut->tied, 54);
      EXPECT_EQ(stored.ties.cut->selected, 14);
      EXPECT_EQ(stored.ties.tie_break, 1);
    }
  }
}

TEST(LayerProfile, OfABudgetThatIsSpentOnTheWindowHasNoCut) {
  for (const char* budget : {"0%", "8", "16"}) {
    for (const KvHeadProfile& head : layer_profile(random_layer(), 0, options(16, 7, budget)).kv_heads) {
      for (const StoredTies& stored : head.ties) {
        EXPECT_FALSE(stored.ties.cut.has_value()) << budget;
        EXPECT_EQ(stored.ties.tie_break, 0);
      }
    }
  }
}

TEST(LayerProfile, OfAWindowThatIsThePromptRanksNothing) {
  const traces::Layer layer = test::trace_layer(test::RandomLayer({2, 1, 3, 4}, 9, 9, 0, 5));
  const LayerProfile profile = layer_profile(layer, 0, options(9, 3, "100%"));
  ASSERT_EQ(profile.kv_heads[0].ties.size(), 4u);
  for (const StoredTies& stored : profile.kv_heads[0].ties) {
    EXPECT_EQ(stored.ties.share, 0);
    EXPECT_FALSE(stored.ties.cut.has_value());
  }
}

TEST(LayerProfile, OfValuesOfZeroHasRankZero) {
  traces::Layer layer = random_layer();
  for (double& number : layer.values.numbers()) number = 0;
  EXPECT_EQ(layer_profile(layer, 0, options(8, 7, "20")).kv_heads[1].values.effective, 0);
}

TEST(LayerProfile, HasTheSameBitsForAnyNumberOfThreads) {
  const traces::Layer layer = random_layer();
  const auto profile = [&] { return figures(layer_profile(layer, 0, options(8, 7, "50%"))); };
  const std::vector<double> one = test::with_threads(1, profile);
  EXPECT_EQ(test::with_threads(2, profile), one);
  EXPECT_EQ(test::with_threads(7, profile), one);
}

TEST(LayerProfile, RefusesOptionsOutOfRange) {
  const auto refusal = [](int64_t window, int64_t pool, const std::string& budget) {
    return message_of<ShapeMismatch>(
        [&] { layer_profile(random_layer(), 0, options(window, pool, budget)); });
  };
  EXPECT_EQ(refusal(17, 7, "20"), "window is 17, not in 1..16");
  EXPECT_EQ(refusal(8, 7, "71"), "budget is 71, not in 0..70");
  EXPECT_EQ(refusal(8, 4, "20"), "a pool of width 4 has no middle; expected an odd width");
}

}  // namespace
}  // namespace kvbound::sim::head_profile_test
