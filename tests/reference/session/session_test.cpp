#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/session_check.hpp>
#include <kvbound/reference/perturbation.hpp>
#include <kvbound/reference/session/session.hpp>

#include "support/recorded_numbers.hpp"
#include "support/session_cases.hpp"
#include "support/threads.hpp"

namespace kvbound::reference::session_test {
namespace {

using namespace test;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

// Requires that the following steps are full attention over these prompt positions and
// every new entry, bit for bit.
void expect_attention_over(const Positions& kept, kvbound::Session& session, const RandomLayer& layer) {
  const int64_t group_size = layer.shape.group_size();
  for (int64_t t = 0; t < kSteps; ++t) {
    const StepRecord record = session.step(layer.step(t));
    EXPECT_TRUE(record.evicted.empty()) << "nobody has to leave";
    Positions cached = kept;
    for (int64_t i = 0; i <= t; ++i) cached.push_back(kTokens + i);
    for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
      const Matrix output = attention(layer.step(t).queries.middle_rows(g * group_size, group_size),
                                      rows_at(layer.keys(g, t), cached), rows_at(layer.values(g, t), cached),
                                      layer.view().scale)
                                .output;
      for (int64_t i = 0; i < group_size; ++i) {
        EXPECT_TRUE(std::ranges::equal(record.output.row(g * group_size + i), output.row(i))) << "step " << t;
      }
    }
  }
}

TEST(Session, KeepsTheWindowAloneAtABudgetOfTheWindow) {
  const RandomLayer layer = random_layer(2, 3);
  const Positions window = range(kTokens - kHost.window, kTokens);
  for (const Policy& policy : all_policies()) {
    const auto session = make_session();
    const auto kept = session->compress(layer.view(), policy, Positions{kHost.window, kHost.window}).kept;
    EXPECT_EQ(kept, std::vector(2, window));
    expect_attention_over(window, *session, layer);
  }
}

TEST(Session, ChangesNothingAtABudgetOfThePrompt) {
  const RandomLayer layer = random_layer(2, 4);
  const LayerView view = layer.view();
  for (const Policy& policy : all_policies()) {
    const auto session = make_session();
    const auto kept = session->compress(view, policy, Positions{kTokens, kTokens}).kept;
    EXPECT_EQ(kept, std::vector(2, range(0, kTokens)));
    expect_attention_over(range(0, kTokens), *session, layer);
  }
  for (int64_t h = 0; h < kQueryHeads; ++h) {
    const MatrixView query = layer.step(0).queries.middle_rows(h, 1), keys = layer.keys(h / 2, 0);
    const Matrix logits = attention_logits(query, keys, view.scale);
    const Matrix weights = attention_weights(query, keys, view.scale, kTokens);
    const EvictionWeights eviction = eviction_weights(logits.row(0), weights.row(0), range(0, kTokens + 1));
    EXPECT_EQ(output_perturbation(eviction, layer.values(h / 2, 0), view.head_projection(h)), 0);
  }
}

TEST(Session, KeepsEveryNewEntry) {
  // The first step adds a key that the last step's queries match by 10^3 nats more than all others.
  RandomLayer layer = random_layer(2, 5);
  for (int64_t g = 0; g < 2; ++g) {
    for (double& entry : layer.all_keys.slice(g).row(kTokens)) entry *= 30;
    for (int64_t h = 2 * g; h < 2 * g + 2; ++h) {
      std::ranges::copy(layer.all_keys.slice(g).row(kTokens),
                        layer.all_queries.slice(h).row(kRecorded + kSteps - 1).begin());
    }
  }
  const auto session = make_session();
  session->compress(layer.view(), kTopK, Positions{kHost.window, kHost.window});
  StepRecord last;
  for (int64_t t = 0; t < kSteps; ++t) last = session->step(layer.step(t));
  for (int64_t h = 0; h < kQueryHeads; ++h) {
    EXPECT_TRUE(std::ranges::equal(last.output.row(h), layer.values(h / 2, 0).row(kTokens)));
  }
}

TEST(Session, AdaptsStageOneToTheNeediestHead) {
  // Keys 0, 1, 2, 0; the window is the last query. Head 0's query 0 gives 1/4 to each: beside the
  // window's 1/4 two more are needed to exceed 1/2. Head 1's query 10 gives nearly all to key 2: one is
  // enough. The order is 2, 1, 0.
  Tensor keys(1, 4, 1), values(1, 4, 1), queries(2, 1, 1);
  keys.slice(0)(1, 0) = 1;
  keys.slice(0)(2, 0) = 2;
  queries.slice(1)(0, 0) = 10;
  const Matrix output_projection(2, 1);
  const LayerView layer{{2, 1, 1, 1}, 1, keys, values, queries, output_projection};
  Policy policy = two_stage<Critical>({}, GqaProduct::mean_of_products, Norm::l1);
  policy.host = SnapKv{1, 1};
  const PromptRecord record = make_session()->compress(layer, policy, Positions{4});
  EXPECT_EQ(record.stage_one, std::vector(1, Positions{1, 2, 3}));
  EXPECT_EQ(record.kept, std::vector(1, Positions{0, 1, 2, 3}));
}

TEST(Session, StartsOverWhenItCompressesAgain) {
  const RandomLayer layer = random_layer(2, 6);
  const auto session = make_session();
  for (const Policy& policy : all_policies()) {
    for (const Positions& budgets : {Positions{7, 21}, Positions{kTokens, kHost.window}}) {
      EXPECT_EQ(recorded_numbers(*session, layer, policy, budgets, kSteps),
                recorded_numbers(*make_session(), layer, policy, budgets, kSteps));
    }
  }
  Policy wider = kTopK;
  wider.host = SnapKv{8, 1};
  EXPECT_EQ(recorded_numbers(*session, layer, wider, {9, 9}, kSteps),
            recorded_numbers(*make_session(), layer, wider, {9, 9}, kSteps));
}

TEST(Session, GivesTheSameBitsForAnyNumberOfThreads) {
  // 300 tokens: more than one block of norms.
  const RandomLayer layer({8, 4, 16, 40}, 300, 40, kSteps, 8);
  const Positions budgets{60, 90, 45, 300};
  for (Policy policy : {kTopK, two_stage<Critical>({}, GqaProduct::mean_of_products, Norm::l1),
                        two_stage<ThetaSweep>(Decimal{5, 1}, GqaProduct::product_of_means, Norm::l2)}) {
    policy.host = SnapKv{36, 7};
    const auto numbers = [&] { return recorded_numbers(*make_session(), layer, policy, budgets, kSteps); };
    const std::vector<double> alone = test::with_threads(1, numbers);
    for (const int threads : {2, 4, 7}) {
      EXPECT_EQ(test::with_threads(threads, numbers), alone) << threads << " threads";
    }
  }
}

TEST(Session, NamesTheBudgetsThatDoNotFit) {
  const RandomLayer layer = random_layer(2, 9);
  const auto session = make_session();
  const auto refused = [&](const Policy& policy, const Positions& budgets) {
    return message_of<InvalidPolicy>([&] { session->compress(layer.view(), policy, budgets); });
  };
  EXPECT_EQ(message_of<ShapeMismatch>([&] { session->compress(layer.view(), kTopK, Positions{10}); }),
            "budgets is 1 but kv_heads is 2");
  EXPECT_EQ(refused(kTopK, {10, 31}), "budget of 31 entries is outside 1..30, the prompt's tokens");
  EXPECT_EQ(refused(kTopK, {0, 10}),
            "budget of 0 entries is below the 6 of the observation window, which are always kept");
  EXPECT_EQ(refused(kTopK, {-5, 10}), "budget of -5 entries is outside 1..30, the prompt's tokens");
  EXPECT_EQ(refused(kTopK, {10, 5}),
            "budget of 5 entries is below the 6 of the observation window, which are always kept");
  Policy unrecorded = kTopK;
  unrecorded.host = SnapKv{9, 7};
  EXPECT_EQ(refused(unrecorded, {10, 10}), "window=9 but the trace records only 8 prompt queries");
}

TEST(RequireValid, AcceptsTheWholeRangeAndNothingBeside) {
  EXPECT_NO_THROW(require_valid(kTopK, kHost.window, kTokens, kRecorded));
  EXPECT_NO_THROW(require_valid(kTopK, kTokens, kTokens, kHost.window));
  EXPECT_THROW(require_valid(kTopK, kHost.window - 1, kTokens, kRecorded), InvalidPolicy);
  EXPECT_THROW(require_valid(kTopK, kTokens + 1, kTokens, kRecorded), InvalidPolicy);
  EXPECT_THROW(require_valid(kTopK, kTokens, kTokens, kHost.window - 1), InvalidPolicy);
}

std::string refusal(const Allocation& allocation, const Merge& merge) {
  const Policy policy{kHost, AttentionScore{}, TopK{}, allocation, merge};
  return message_of<InvalidPolicy>([&] { require_valid(policy, kHost.window, kTokens, kRecorded); });
}

TEST(RequireValid, RefusesOptionsOfMergingAndAllocationThatHaveNoMeaning) {
  EXPECT_EQ(refusal(AdaKv{{11, 1}}, NoMerge{}), "safeguard=1.1 but it must be at most 1");
  EXPECT_EQ(refusal(Pyramid{0, Decay::linear}, NoMerge{}), "beta=0 but it must be at least 1");
  EXPECT_EQ(refusal(Uniform{}, D2o{{Decimal{2, 0}}}), "threshold=2 but it must be at most 1");
  EXPECT_EQ(refusal(Uniform{}, KvMerger{{Decimal{101, 2}}}), "threshold=1.01 but it must be at most 1");
  EXPECT_EQ(refusal(Uniform{}, Cam{0, 0}), "neighbours=0 but it must be at least 1");
  EXPECT_EQ(refusal(Uniform{}, Cam{1, -1}), "seed=-1 but it must be at least 0");
  KeepKv merge;
  merge.rank = 1.5;
  EXPECT_EQ(refusal(Uniform{}, merge), "rank=1.5 but it must be from 0 to 1");
  merge.rank = std::nan("");
  EXPECT_EQ(refusal(Uniform{}, merge), "rank=nan but it must be from 0 to 1");
  merge.rank = 1;
  merge.period = 0;
  EXPECT_EQ(refusal(Uniform{}, merge), "period=0 but it must be at least 1");
  ConvexMerge convex;
  convex.prediction.ema = 1;
  EXPECT_EQ(refusal(Uniform{}, convex), "ema=1 but it must be 0, or from 1e-270 to below 1");
  convex.prediction.ema = 1e-300;
  EXPECT_EQ(refusal(Uniform{}, convex), "ema=1e-300 but it must be 0, or from 1e-270 to below 1");
  EXPECT_EQ(refusal(AdaKv{{1, 0}}, KeepKv::as_printed()), "no error");
}

}  // namespace
}  // namespace kvbound::reference::session_test
