#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/session_check.hpp>
#include <kvbound/sim/options/layer_budgets.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::layer_budgets_test {
namespace {

using test::integer;
using Counts = std::vector<int64_t>;

Counts budgets(const char* policy, int64_t entries, int64_t layers, int64_t tokens) {
  return layer_budgets(parse_policy(policy), entries, layers, tokens);
}

TEST(LayerBudgets, AreAllTheSameWithoutAPyramid) {
  EXPECT_EQ(budgets("snapkv", 50, 3, 1000), (Counts{50, 50, 50}));
  EXPECT_EQ(budgets("tova+adakv+keepkv", 50, 2, 1000), (Counts{50, 50}));
}

TEST(LayerBudgets, OfAPyramidFallToTheAlwaysKeptAtLeast) {
  EXPECT_EQ(budgets("snapkv+pyramid", 100, 3, 1000), (Counts{168, 100, 32})) << "the window";
  EXPECT_EQ(budgets("h2o:window=32:recent=10:sinks=5+pyramid", 100, 3, 1000), (Counts{185, 100, 15}));
  EXPECT_EQ(budgets("tova:sinks=9+pyramid", 100, 3, 1000), (Counts{191, 100, 9}));
  EXPECT_EQ(budgets("tova+pyramid:beta=1000", 100, 3, 1000), (Counts{199, 100, 1})) << "one entry at least";
  EXPECT_EQ(budgets("streaming-llm+pyramid", 100, 3, 1000), (Counts{195, 100, 5})) << "more than its sinks";
  EXPECT_EQ(budgets("streaming-llm:sinks=8+pyramid", 100, 3, 1000), (Counts{192, 100, 8}));
  EXPECT_EQ(budgets("streaming-llm:sinks=0+pyramid:beta=1000", 100, 3, 1000), (Counts{199, 100, 1}));
  EXPECT_EQ(budgets("random+pyramid", 100, 3, 1000), (Counts{164, 100, 36})) << "the sinks and the window";
  EXPECT_EQ(budgets("random:sinks=0:window=0+pyramid:beta=1000", 100, 3, 1000), (Counts{199, 100, 1}));
}

TEST(LayerBudgets, OfAPyramidFallAsItsOptionsSay) {
  EXPECT_EQ(budgets("tova+pyramid:beta=4:shape=cosine", 100, 5, 1000), (Counts{175, 153, 100, 47, 25}));
}

RC_GTEST_PROP(LayerBudgets, AreValidInEveryLayerIfTheirMeanIs, ()) {
  const int64_t tokens = *integer(1, 300), window = *integer(1, tokens);
  const int64_t sinks = *integer(0, tokens), entries = *integer(1, tokens);
  const Host hosts[] = {SnapKv{window, 1}, H2o{window, sinks, *integer(0, tokens)}, Tova{sinks},
                        StreamingLlm{sinks}, RandomHost{0, sinks, window}};
  Policy policy;
  policy.host = hosts[*integer(0, 4)];
  policy.allocation = Pyramid{*integer(1, 50), *integer(0, 1) == 0 ? Decay::linear : Decay::cosine};
  try {
    require_valid(policy, entries, tokens, window);
  } catch (const InvalidPolicy&) {
    RC_DISCARD("not valid");
  }
  const int64_t layers = *integer(1, 30);
  const Counts counts = layer_budgets(policy, entries, layers, tokens);
  RC_ASSERT(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == layers * entries);
  for (const int64_t count : counts) require_valid(policy, count, tokens, window);
}

}  // namespace
}  // namespace kvbound::sim::layer_budgets_test
