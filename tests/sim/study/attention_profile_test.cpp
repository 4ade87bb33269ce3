#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/study/attention_profile.hpp>

#include "support/trace_layer.hpp"

namespace kvbound::sim::attention_profile_test {
namespace {

using test::message_of;
using test::weighted_layer;

// A layer of one head whose queries, the prompt's last and those of the steps, all have these logits.
traces::Layer logit_layer(int64_t tokens, const std::vector<double>& logits) {
  traces::Layer layer = weighted_layer(tokens, {std::vector<double>(logits.size(), 1)});
  std::ranges::copy(logits, layer.keys.numbers().begin());
  return layer;
}

TEST(AttentionProfile, OfEqualLogitsIsUniform) {
  // Queries at positions 3, 4 and 5 see 4, 5 and 6 entries.
  const AttentionProfile profile = attention_profile(logit_layer(4, {7, 7, 7, 7, 7, 7}), 0, 2);
  EXPECT_DOUBLE_EQ(profile.sink_mass, 2 * (1 / 4.0 + 1 / 5.0 + 1 / 6.0) / 3);
  EXPECT_DOUBLE_EQ(profile.entropy, std::log(4.0 * 5 * 6) / 3);
  EXPECT_DOUBLE_EQ(profile.effective_entries, std::cbrt(4.0 * 5 * 6));
  EXPECT_DOUBLE_EQ(profile.relative_entropy, 1);
  EXPECT_EQ(profile.top_position, 0) << "the first of those that all queries see";
  EXPECT_DOUBLE_EQ(profile.top_mass, (1 / 4.0 + 1 / 5.0 + 1 / 6.0) / 3);
}

TEST(AttentionProfile, OfAHandMadeHeadIsThatOfPaper) {
  // Weights (1, 2, 1)/4 and, one step later, (1, 2, 1, 4)/8.
  const AttentionProfile profile = attention_profile(weighted_layer(3, {{1, 2, 1, 4}}), 0, 1);
  EXPECT_DOUBLE_EQ(profile.sink_mass, (1 / 4.0 + 1 / 8.0) / 2);
  EXPECT_EQ(profile.top_position, 1) << "entry 3 has as much in one query and none in the other";
  EXPECT_DOUBLE_EQ(profile.top_mass, (1 / 2.0 + 1 / 4.0) / 2);
  const double first = 1.5 * std::log(2), second = (2 * 3 / 8.0 + 2 / 4.0 + 1 / 2.0) * std::log(2);
  EXPECT_DOUBLE_EQ(profile.entropy, (first + second) / 2);
  EXPECT_DOUBLE_EQ(profile.relative_entropy, (first / std::log(3) + second / std::log(4)) / 2);
}

TEST(AttentionProfile, OfAOneHotHasNoEntropy) {
  for (const double size : {1e4, 1e308}) {  // of 1e308 even differences of logits overflow
    const AttentionProfile profile =
        attention_profile(logit_layer(3, {-size, -size, size, -size, -size}), 0, 2);
    EXPECT_EQ(profile.entropy, 0) << size;
    EXPECT_EQ(profile.effective_entries, 1);
    EXPECT_EQ(profile.relative_entropy, 0);
    EXPECT_EQ(profile.sink_mass, 0);
    EXPECT_EQ(profile.top_position, 2);
    EXPECT_EQ(profile.top_mass, 1);
  }
}

TEST(AttentionProfile, OfAPromptShorterThanTheSinksHasAllMassOnThem) {
  EXPECT_EQ(attention_profile(weighted_layer(2, {{1, 5}}), 0, 4).sink_mass, 1);
  EXPECT_DOUBLE_EQ(attention_profile(weighted_layer(2, {{1, 5, 2, 2, 10}}), 0, 4).sink_mass,
                   (3 + 10.0 / 20) / 4);
}

TEST(AttentionProfile, OfASingleEntryIsCertain) {
  const AttentionProfile profile = attention_profile(logit_layer(1, {-3}), 0, 1);
  EXPECT_EQ(profile.entropy, 0);
  EXPECT_EQ(profile.relative_entropy, 0);
  EXPECT_EQ(profile.effective_entries, 1);
  EXPECT_EQ(profile.sink_mass, 1);
  EXPECT_EQ(profile.top_mass, 1);
}

TEST(AttentionProfile, RefusesNoSinks) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { attention_profile(logit_layer(1, {0}), 0, 0); }),
            "the first 0 positions are no sinks");
}

TEST(AttentionProfileOracle, HoldsForEveryHeadOfARandomLayer) {
  // More queries than are computed at a time, and two query heads per KV head.
  const traces::Layer layer = test::trace_layer(test::RandomLayer({4, 2, 5, 6}, 90, 41, 9, 3));
  for (int64_t h = 0; h < 4; ++h) {
    long double sink_mass = 0, entropy = 0, relative = 0;
    std::vector<long double> received(99);
    for (int64_t i = 0; i < 50; ++i) {
      const int64_t visible = 90 - 41 + i + 1;
      std::vector<long double> exponentials;
      long double sum = 0;
      for (int64_t j = 0; j < visible; ++j) {
        long double logit = 0;
        for (int64_t c = 0; c < 5; ++c) {
          logit += static_cast<long double>(layer.queries.slice(h)(i, c)) * layer.keys.slice(h / 2)(j, c);
        }
        sum += exponentials.emplace_back(std::exp(logit * layer.scale));
      }
      long double own = 0;
      for (int64_t j = 0; j < visible; ++j) {
        const long double weight = exponentials[j] / sum;
        own -= weight * std::log(weight);
        received[j] += weight;
        if (j < 3) sink_mass += weight;
      }
      entropy += own;
      relative += own / std::log(static_cast<long double>(visible));
    }
    const AttentionProfile profile = attention_profile(layer, h, 3);
    const auto top = std::ranges::max_element(received);
    EXPECT_NEAR(profile.sink_mass, static_cast<double>(sink_mass / 50), 1e-13);
    EXPECT_NEAR(profile.entropy, static_cast<double>(entropy / 50), 1e-13);
    EXPECT_NEAR(profile.relative_entropy, static_cast<double>(relative / 50), 1e-13);
    EXPECT_NEAR(profile.effective_entries, static_cast<double>(std::exp(entropy / 50)), 1e-11);
    EXPECT_EQ(profile.top_position, top - received.begin());
    EXPECT_NEAR(profile.top_mass, static_cast<double>(*top / 50), 1e-13);
  }
}

RC_GTEST_PROP(AttentionProfileProperty, StaysInItsRangesAndIgnoresAShiftOfAllLogits, ()) {
  const auto logits = test::numbers(*test::dyadics(1, 20, 30));
  const int64_t tokens = *test::integer(1, std::ssize(logits)), sinks = *test::integer(1, 6);
  const AttentionProfile profile = attention_profile(logit_layer(tokens, logits), 0, sinks);
  const double most = std::log(static_cast<double>(logits.size()));
  RC_ASSERT(profile.entropy >= 0 && profile.entropy <= most);
  RC_ASSERT(profile.relative_entropy >= 0 && profile.relative_entropy <= 1);
  RC_ASSERT(profile.sink_mass >= 0 && profile.sink_mass <= 1);
  RC_ASSERT(profile.top_mass <= 1 && profile.top_mass >= 1 / static_cast<double>(logits.size()) - 1e-15);
  auto shifted = logits;
  for (double& logit : shifted) logit += 1024;  // exact
  const AttentionProfile same = attention_profile(logit_layer(tokens, shifted), 0, sinks);
  RC_ASSERT(same.entropy == profile.entropy && same.sink_mass == profile.sink_mass &&
            same.top_position == profile.top_position && same.top_mass == profile.top_mass);
}

}  // namespace
}  // namespace kvbound::sim::attention_profile_test
