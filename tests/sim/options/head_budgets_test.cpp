#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/head_scores.hpp>
#include <kvbound/reference/core/session_check.hpp>
#include <kvbound/sim/options/head_budgets.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::head_budgets_test {
namespace {

using test::integer;
using test::message_of;
using Counts = std::vector<int64_t>;

constexpr int64_t kHeads = 2;

BudgetScope scope_of(int64_t layers, int64_t tokens) {
  BudgetScope scope{{2 * kHeads, kHeads, 8, 16}, layers, {}, tokens, tokens};
  for (int64_t l = 0; l < layers; ++l) scope.replayed.push_back(l);
  return scope;
}

// The layers' budgets, which are those of all their heads.
Counts budgets(const char* policy, int64_t entries, int64_t layers, int64_t tokens) {
  Counts counts;
  for (const Counts& heads : head_budgets(parse_policy(policy), entries, scope_of(layers, tokens))) {
    EXPECT_EQ(heads, Counts(kHeads, heads.front()));
    counts.push_back(heads.front());
  }
  return counts;
}

// headkv with these scores, as files have them.
Policy head_kv(const std::string& policy, std::vector<std::vector<std::string>> scores) {
  Policy parsed = parse_policy(policy + "+headkv:scores=s.json");
  HeadScores read;
  read.path = "/s.json";
  read.scores = std::move(scores);
  std::get<HeadKv>(parsed.allocation).read = std::make_shared<const HeadScores>(std::move(read));
  return parsed;
}

TEST(HeadBudgets, AreAllTheSameWithoutAPyramid) {
  EXPECT_EQ(budgets("snapkv", 50, 3, 1000), (Counts{50, 50, 50}));
  EXPECT_EQ(budgets("tova+adakv+keepkv", 50, 2, 1000), (Counts{50, 50}));
}

TEST(HeadBudgets, OfAPyramidFallToTheAlwaysKeptAtLeast) {
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

TEST(HeadBudgets, OfAPyramidFallAsItsOptionsSay) {
  EXPECT_EQ(budgets("tova+pyramid:beta=4:shape=cosine", 100, 5, 1000), (Counts{175, 153, 100, 47, 25}));
}

TEST(HeadBudgets, OfHeadKvAreSharedAmongTheLayersThatAreReplayed) {
  // k = 20 - 8, of which 10 are shared; a group's scores are added up: 1, 3, 0, 0, 4, 2.
  const Policy policy =
      head_kv("snapkv:window=8", {{"0.5", "0.5", "1", "2"}, {"0", "-0", "0", "0.0"}, {"4e0", "0", "2", "0"}});
  BudgetScope scope = scope_of(3, 1000);
  EXPECT_EQ(head_budgets(policy, 20, scope), (HeadBudgets{{16, 28}, {10, 10}, {34, 22}}))
      << "6 of 60 for each 1";
  scope.replayed = {0, 2};
  EXPECT_EQ(head_budgets(policy, 20, scope), (HeadBudgets{{14, 22}, {20, 20}, {26, 18}}))
      << "4 of 40 for each 1";
}

TEST(HeadBudgets, OfHeadKvFindALayersScoresByItsNumberInTheModel) {
  const std::vector<std::vector<std::string>> all{
      {"1", "0", "1", "0"}, {"9", "9", "0", "0"}, {"1", "0", "3", "0"}};
  BudgetScope scope = scope_of(2, 1000);
  scope.model_layers = {0, 2};
  EXPECT_EQ(head_budgets(head_kv("snapkv:window=8", all), 17, scope),
            head_budgets(head_kv("snapkv:window=8", {all[0], all[2]}), 17, scope));
  scope.model_layers = {0, 3};
  EXPECT_EQ(message_of<InvalidPolicy>([&] { head_budgets(head_kv("tova", all), 12, scope); }),
            "/s.json has scores of 3 layers of 4 query heads; expected 2 of 4");
}

TEST(HeadBudgets, OfHeadKvTakeScoresAsTheyArePrinted) {
  // 0.1 + 0.2 is 0.3 in decimal: no part of the pool of 2 x 10 is left to a largest fraction.
  const Policy tenths = head_kv("tova", {{"0.1", "0.2", "3e-1", "0"}});
  EXPECT_EQ(head_budgets(tenths, 12, scope_of(1, 100)), (HeadBudgets{{12, 12}}));
  // A head of 10^-40 of the other's importance gets nothing, one of 10^40 times its own all.
  const Policy far = head_kv("tova", {{"1e-20", "0", "100000000000000000000", "0"}});
  EXPECT_EQ(head_budgets(far, 12, scope_of(1, 100)), (HeadBudgets{{2, 22}}));
}

TEST(HeadBudgets, OfHeadKvRaiseScoresToTheTemperature) {
  Policy policy = head_kv("tova", {{"1", "1", "3", "1"}});  // squares: 2 and 10
  std::get<HeadKv>(policy.allocation).temperature = 2;
  EXPECT_EQ(head_budgets(policy, 12, scope_of(1, 100)), (HeadBudgets{{5, 19}})) << "3.3 and 16.7 of 20";
  std::get<HeadKv>(policy.allocation).temperature = 0;
  EXPECT_EQ(head_budgets(policy, 12, scope_of(1, 100)), (HeadBudgets{{12, 12}}));
  std::get<HeadKv>(policy.allocation).temperature = 700;
  EXPECT_EQ(message_of<InvalidPolicy>([&] { head_budgets(policy, 12, scope_of(1, 100)); }),
            "headkv:temperature makes the score 3 infinite");
}

TEST(HeadBudgets, OfHeadKvNeedScoresOfTheModel) {
  const Policy policy = head_kv("tova", {{"1", "1", "3", "1"}});
  EXPECT_EQ(message_of<InvalidPolicy>([&] { head_budgets(policy, 12, scope_of(2, 100)); }),
            "/s.json has scores of 1 layers of 4 query heads; expected 2 of 4");
}

RC_GTEST_PROP(HeadBudgets, AreValidInEveryLayerIfTheirMeanIs, ()) {
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
  int64_t sum = 0;
  for (const Counts& heads : head_budgets(policy, entries, scope_of(layers, tokens))) {
    for (const int64_t count : heads) {
      require_valid(policy, count, tokens, window);
      sum += count;
    }
  }
  RC_ASSERT(sum == layers * kHeads * entries);
}

}  // namespace
}  // namespace kvbound::sim::head_budgets_test
