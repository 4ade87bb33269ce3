#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/cam.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::cam_test {
namespace {

using test::matrix;
using test::message_of;

constexpr double kLeast = std::numeric_limits<double>::denorm_min();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(SpreadProbability, IsTheShareOfTheMeanOfThoseThatFollowAndAtMostOne) {
  EXPECT_EQ(spread_probability(0.25, std::vector{0.5, 0.5}), 0.5);
  EXPECT_EQ(spread_probability(0.25, std::vector{0.125, 0.375, 1.0}), 0.5);
  EXPECT_EQ(spread_probability(0.75, std::vector{0.5}), 1);
  EXPECT_EQ(spread_probability(0.5, std::vector{0.5}), 1);
  EXPECT_EQ(spread_probability(1, std::vector{kLeast}), 1) << "though the quotient overflows";
}

TEST(SpreadProbability, IsZeroForNoAttentionAndOneIfOnlyTheOthersHaveNone) {
  EXPECT_EQ(spread_probability(0, std::vector{0.0, 0.0}), 0);
  EXPECT_EQ(spread_probability(0, std::vector{0.5}), 0);
  EXPECT_EQ(spread_probability(0.25, std::vector{0.0, 0.0}), 1);
}

TEST(SpreadProbability, RefusesNoneThatFollowAndWhatIsNoWeight) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { spread_probability(0.5, {}); }), "no entries follow");
  EXPECT_EQ(message_of<NonFinite>([] { spread_probability(kNaN, std::vector{0.5}); }),
            "attention weights of nan and, in sum, 0.500000");
  EXPECT_EQ(message_of<NonFinite>([] {
              spread_probability(0.5, std::vector{0.5, kNaN});
            }),
            "attention weights of 0.500000 and, in sum, nan");
}

TEST(Spreads, DrawsByChainedSplitMix) {
  const auto draw = [](uint64_t seed, uint64_t kv_head, uint64_t position) {
    const auto mix = [](uint64_t bits) {
      bits ^= bits >> 30;
      bits *= 0xbf58476d1ce4e5b9;
      bits ^= bits >> 27;
      bits *= 0x94d049bb133111eb;
      return bits ^ (bits >> 31);
    };
    constexpr uint64_t golden = 0x9e3779b97f4a7c15;
    EXPECT_EQ(mix(golden), 16294208416658607535u) << "what SplitMix64 is known to give first for a seed of 0";
    return static_cast<double>(mix(mix(mix(seed + golden) + kv_head + golden) + position + golden) >> 11) *
           0x1p-53;
  };
  for (const int64_t seed : {int64_t{0}, int64_t{1}, INT64_MAX}) {
    for (int64_t kv_head = 0; kv_head < 3; ++kv_head) {
      for (const int64_t position : {0, 1, 1000}) {
        const double u = draw(static_cast<uint64_t>(seed), static_cast<uint64_t>(kv_head),
                              static_cast<uint64_t>(position));
        EXPECT_FALSE(spreads(u, seed, kv_head, position)) << "strictly below";
        EXPECT_TRUE(spreads(std::nextafter(u, 1.0), seed, kv_head, position));
      }
    }
  }
}

TEST(Spreads, AlwaysForACertaintyAndNeverForNoChance) {
  for (int64_t position = 0; position < 1000; ++position) {
    EXPECT_TRUE(spreads(1, 7, 0, position));
    EXPECT_FALSE(spreads(0, 7, 0, position));
  }
}

TEST(Spreads, AsOftenAsItsProbabilitySays) {
  // 20000 independent draws are more than 5 standard deviations (5 sqrt(p (1 - p) 20000)) from their mean
  // once in 1.7 million; the draws here are the same in every run.
  for (const double probability : {0.1, 0.5, 0.9}) {
    int64_t taken = 0;
    for (int64_t position = 0; position < 20000; ++position) taken += spreads(probability, 3, 1, position);
    const double mean = 20000 * probability;
    EXPECT_NEAR(static_cast<double>(taken), mean, 5 * std::sqrt(mean * (1 - probability)));
  }
}

HeadCache cache_of(const std::vector<int64_t>& positions) {
  HeadCache cache;
  for (const int64_t position : positions) {
    const auto x = static_cast<double>(position);
    cache.append(position, std::vector{x, 1.0}, std::vector{10 * x});
  }
  return cache;
}

TEST(FollowingEntries, AreThoseOfTheNextPositionsNearestFirst) {
  const std::vector<int64_t> positions{7, 2, 9, 4, 5};
  EXPECT_EQ(following_entries(positions, 3, 2), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(following_entries(positions, 4, 9), (std::vector<int64_t>{4, 0, 2}));
  EXPECT_TRUE(following_entries(positions, 9, 1).empty());
}

TEST(MeanAttention, IsTheMeanOfSoftmaxes) {
  const std::vector<double> mean = mean_attention(matrix({{0, 0}, {-800, 0}}));
  EXPECT_DOUBLE_EQ(mean[0], 0.25);
  EXPECT_DOUBLE_EQ(mean[1], 0.75);
}

// A probability of 1 always spreads, so that nothing depends on the seed.
TEST(SpreadLeaving, AddsEqualSharesOfOriginalValuesToThoseThatFollow) {
  HeadCache cache = cache_of({1, 3, 4});
  const Matrix values = matrix({{8}, {10}, {2}, {30}, {40}, {64}});
  const HeadMerge record =
      spread_leaving({2, 0}, 0, std::vector{0.4, 0.1, 0.3, 0.1, 0.1, 0.0}, values, cache);
  EXPECT_EQ(cache.values(0, 0), 10 + 8 / 2.0);
  EXPECT_EQ(cache.values(1, 0), 30 + 8 / 2.0 + 2 / 2.0);
  EXPECT_EQ(cache.values(2, 0), 40 + 2 / 2.0) << "and nothing of the last, which no entry follows";
  ASSERT_EQ(record.clusters.size(), 2U);
  EXPECT_EQ(record.clusters[0].into, 1);
  EXPECT_EQ(record.clusters[1].into, 3);
  EXPECT_EQ(record.counts.merged, 2);
}

TEST(SpreadLeaving, SpreadsNothingThatNoQueryHeeds) {
  HeadCache cache = cache_of({1});
  const HeadMerge record = spread_leaving({32, 0}, 0, std::vector{0.0, 1.0}, matrix({{8}, {10}}), cache);
  EXPECT_EQ(cache.values(0, 0), 10);
  EXPECT_TRUE(record.clusters.empty());
}

TEST(SpreadEntry, TellsWhoseValuesChanged) {
  HeadCache cache = cache_of({5, 2, 3});
  std::vector<int64_t> changed;
  const HeadMerge record =
      spread_entry({32, 0}, 0, std::vector{0.1, 0.8, 0.1}, 1, std::nullopt, cache, changed);
  EXPECT_EQ(changed, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(record.positions, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(cache.values(2, 0), 30 + 20 / 2.0);
  EXPECT_EQ(cache.values(0, 0), 50 + 20 / 2.0);
  EXPECT_EQ(record.clusters.front().into, 3);
  EXPECT_EQ(record.clusters.front().from, (std::vector<int64_t>{2}));
}

TEST(SpreadEntry, GoesByADecisionThatWasMade) {
  for (const bool drawn : {false, true}) {
    HeadCache cache = cache_of({5, 2});
    std::vector<int64_t> changed;
    spread_entry({32, 0}, 0, std::vector{0.5, 0.5}, 1, drawn, cache, changed);
    EXPECT_EQ(cache.values(0, 0), drawn ? 70 : 50);
    EXPECT_EQ(changed.empty(), !drawn);
  }
}

}  // namespace
}  // namespace kvbound::reference::cam_test
