#include <algorithm>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/streaming_llm.hpp>
#include <kvbound/reference/session/session.hpp>

#include "support/decoding.hpp"
#include "support/power_layer.hpp"
#include "support/session_cases.hpp"

namespace kvbound::reference::streaming_llm_test {
namespace {

using namespace test;
using Evictions = std::vector<Positions>;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

Policy streaming_llm(int64_t sinks) { return {StreamingLlm{sinks}, {}, {}, {}, {}}; }

TEST(SinksAndNewest, AreTheFirstAndTheLast) {
  EXPECT_EQ(sinks_and_newest(10, 2, 5), (Positions{0, 1, 7, 8, 9}));
  EXPECT_EQ(sinks_and_newest(10, 0, 3), (Positions{7, 8, 9}));
  EXPECT_EQ(sinks_and_newest(10, 3, 3), (Positions{0, 1, 2})) << "sinks alone";
  EXPECT_EQ(sinks_and_newest(4, 1, 4), (Positions{0, 1, 2, 3}));
  EXPECT_EQ(sinks_and_newest(4, 0, 0), Positions{});
}

TEST(SinksAndNewest, NameABudgetThatDoesNotFit) {
  const auto refused = [](int64_t tokens, int64_t sinks, int64_t budget) {
    return message_of<ShapeMismatch>([&] { sinks_and_newest(tokens, sinks, budget); });
  };
  EXPECT_EQ(refused(10, 4, 3), "budget is 3 but it must be within 4 sinks and 10 prompt tokens");
  EXPECT_EQ(refused(10, 4, 11), "budget is 11 but it must be within 4 sinks and 10 prompt tokens");
  EXPECT_EQ(refused(10, -1, 3), "budget is 3 but it must be within -1 sinks and 10 prompt tokens");
}

TEST(StreamingLlm, ScoresNothing) {
  const RandomLayer layer({4, 2, 3, 2}, 9, 0, 2, 1);
  const PromptRecord record = make_session()->compress(layer.view(), streaming_llm(2), Positions{5, 3});
  EXPECT_EQ(record.kept, (std::vector{Positions{0, 1, 6, 7, 8}, Positions{0, 1, 8}}));
  EXPECT_TRUE(record.score_positions.empty());
  EXPECT_EQ(record.score.rows(), 0);
  EXPECT_FALSE(record.stage_two_score.has_value());
  EXPECT_FALSE(record.projected_value_norms.has_value());
  EXPECT_TRUE(record.stage_one.empty());
}

TEST(StreamingLlm, LetsTheOldestThatIsNoSinkGo) {
  // Attention does not matter: the entry with the largest weight is evicted in its turn.
  const PowerLayer layer({1, 1, 1e3, 1, 1, 1, 1, 1}, std::vector<double>(8, 0), {{1, 1, 1, 1, 1}}, 4);
  EXPECT_EQ(evictions(layer, streaming_llm(1), 3), (Evictions{{2}, {3}, {4}, {5}}));
  EXPECT_EQ(evictions(layer, streaming_llm(0), 1), (Evictions{{3}, {4}, {5}, {6}})) << "the newest alone";
  EXPECT_EQ(evictions(layer, streaming_llm(1), 4), (Evictions{{1}, {2}, {3}, {4}}))
      << "all of the prompt at first";
}

TEST(StreamingLlm, OfSinksAloneLetsTheNewEntryGoAtOnce) {
  const PowerLayer layer({1, 1, 1, 1, 1}, {1, 2, 3, 6, 9}, {{0, 0, 0}}, 3);
  EXPECT_EQ(evictions(layer, streaming_llm(2), 2), (Evictions{{3}, {4}}));
  // The new entry is evicted at once, but its own query still attends to it:
  // (1 + 2 + 6) / 3, then (1 + 2 + 9) / 3.
  const auto session = make_session();
  session->compress(layer.view(), streaming_llm(2), Positions{2});
  EXPECT_DOUBLE_EQ(session->step(layer.step(0)).output(0, 0), 3);
  EXPECT_DOUBLE_EQ(session->step(layer.step(1)).output(0, 0), 4);
}

TEST(StreamingLlm, NamesABudgetBelowItsSinks) {
  const PowerLayer layer({1, 1, 1, 1}, {0, 0, 0, 0}, {{0}}, 4);
  const auto refused = [&](int64_t sinks, int64_t budget) {
    return message_of<InvalidPolicy>(
        [&] { make_session()->compress(layer.view(), streaming_llm(sinks), Positions{budget}); });
  };
  EXPECT_EQ(refused(4, 3),
            "budget of 3 entries is below the 4 sinks and 0 recent entries, which are always kept");
  EXPECT_EQ(refused(-1, 3), "sinks=-1 but it must be at least 0");
}

RC_GTEST_PROP(StreamingLlmProperty, KeepsAtEveryStepWhatItWouldKeepOfALongerPrompt, ()) {
  const int64_t tokens = *test::integer(1, 12), steps = *test::integer(1, 12);
  const int64_t budget = *test::integer(1, tokens), sinks = *test::integer(0, budget);
  const std::vector<double> ones(tokens + steps, 1);
  const PowerLayer layer(ones, ones, {std::vector<double>(steps, 1)}, tokens);
  Positions cached = sinks_and_newest(tokens, sinks, budget);
  const Evictions gone = evictions(layer, streaming_llm(sinks), budget);
  for (int64_t t = 0; t < steps; ++t) {
    cached.push_back(tokens + t);
    std::erase(cached, gone[t][0]);
    RC_ASSERT(cached == sinks_and_newest(tokens + t + 1, sinks, budget));
  }
}

}  // namespace
}  // namespace kvbound::reference::streaming_llm_test
