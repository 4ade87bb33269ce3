#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/h2o.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/session/session.hpp>

#include "support/decoding.hpp"
#include "support/oracle.hpp"
#include "support/power_layer.hpp"
#include "support/session_cases.hpp"

namespace kvbound::reference::h2o_test {
namespace {

using namespace test;
using Evictions = std::vector<Positions>;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

Policy h2o(int64_t window, int64_t sinks, int64_t recent) {
  return {H2o{window, sinks, recent}, {}, {}, {}, {}};
}

TEST(AccumulatedAttention, AddsUpOverTheWindow) {
  // Both queries attend equally to the tokens that they see: (1/2, 1/2, 0) + (1/3, 1/3, 1/3).
  const PowerLayer layer({1, 1, 1}, {0, 0, 0}, {{0, 0, 0}}, 3);
  const Matrix sum = accumulated_attention(layer.view(), 2);
  ASSERT_EQ(sum.rows(), 1);
  EXPECT_DOUBLE_EQ(sum(0, 0), 5.0 / 6);
  EXPECT_DOUBLE_EQ(sum(0, 1), 5.0 / 6);
  EXPECT_DOUBLE_EQ(sum(0, 2), 1.0 / 3);
}

TEST(AccumulatedAttention, OverAllQueriesStartsWithTheFirst) {
  // (1, 0, 0) + (1/2, 1/2, 0) + (1/3, 1/3, 1/3).
  const PowerLayer layer({1, 1, 1}, {0, 0, 0}, {{0, 0, 0}}, 3);
  const Matrix sum = accumulated_attention(layer.view(), 3);
  EXPECT_DOUBLE_EQ(sum(0, 0), 11.0 / 6);
  EXPECT_DOUBLE_EQ(sum(0, 1), 5.0 / 6);
  EXPECT_DOUBLE_EQ(sum(0, 2), 1.0 / 3);
}

TEST(AccumulatedAttention, NamesAWindowThatIsNotRecorded) {
  const PowerLayer layer({1, 1, 1}, {0, 0, 0}, {{0, 0}}, 3);
  for (const int64_t window : {3, 0, -1}) {
    EXPECT_EQ(message_of<ShapeMismatch>([&] { accumulated_attention(layer.view(), window); }),
              "window is " + std::to_string(window) + " but 2 prompt queries are recorded");
  }
}

TEST(AccumulatedAttention, RefusesNonNumbers) {
  const PowerLayer layer({1, INFINITY, 1}, {0, 0, 0}, {{1, 1, 1}}, 3);
  EXPECT_THROW(accumulated_attention(layer.view(), 1), NonFinite);
}

TEST(AccumulatedAttentionOracle, IsWindowTimesTheMean) {
  const RandomLayer layer({6, 2, 5, 3}, 50, 40, 0, 1);
  for (const int64_t window : {1, 7, 40}) {
    const Matrix sum = accumulated_attention(layer.view(), window);
    oracle::Rows expected = oracle::window_attention(layer.view(), window);
    for (oracle::Row& row : expected) {
      for (oracle::Bounded& entry : row) entry = {entry.value * window, entry.bound * window};
    }
    EXPECT_TRUE(oracle::all_within(sum, expected));
  }
}

TEST(H2o, ScoresAllPositionsByTheSumAndKeepsSinksAndRecentBesideTheBest) {
  // The only query has weights (1, 8, 2, 1, 4)/16; the sum over one query is its attention.
  const PowerLayer layer({1, 8, 2, 1, 4}, {0, 0, 0, 0, 0}, {{1}}, 5);
  const auto kept = [&](int64_t sinks, int64_t recent, int64_t budget) {
    return make_session()->compress(layer.view(), h2o(1, sinks, recent), Positions{budget}).kept[0];
  };
  EXPECT_EQ(kept(0, 0, 2), (Positions{1, 4}));
  EXPECT_EQ(kept(0, 1, 2), (Positions{1, 4}));
  EXPECT_EQ(kept(1, 1, 3), (Positions{0, 1, 4}));
  EXPECT_EQ(kept(0, 2, 3), (Positions{1, 3, 4}));
  EXPECT_EQ(kept(2, 2, 4), (Positions{0, 1, 3, 4})) << "no room for others";
  EXPECT_EQ(kept(0, 0, 1), Positions{1});
  EXPECT_EQ(kept(0, 0, 4), (Positions{0, 1, 2, 4})) << "0 and 3 tie: the smaller stays";
  EXPECT_EQ(kept(1, 1, 5), range(0, 5));
  EXPECT_EQ(kept(5, 0, 5), range(0, 5));
  const PromptRecord record = make_session()->compress(layer.view(), h2o(1, 1, 1), Positions{3});
  EXPECT_EQ(record.score_positions, range(0, 5)) << "those that always stay are scored, too";
  const double expected[] = {1, 8, 2, 1, 4};
  for (int64_t j = 0; j < 5; ++j) EXPECT_NEAR(record.score(0, j), expected[j] / 16, 1e-15);
}

TEST(H2o, AddsWhatEveryStepPaysToTheSum) {
  // Running sums (4, 1, 2)/7. Step 0 adds 1/4 to each; entry 1 has the least and is evicted. Step 1 adds (2,
  // 4, 8, 1)/15 to 0, 2, 3, 4, and 0, 2, 3 have 0.95, 0.80, 0.78: 3 is evicted, although step 1 gave it most
  // and gave least to 4, which is always kept.
  const PowerLayer layer({4, 1, 2, 1, 8}, {0, 0, 0, 0, 0}, {{1, 0, -1}}, 3);
  EXPECT_EQ(evictions(layer, h2o(1, 0, 1), 3), (Evictions{{1}, {3}}));
}

TEST(H2o, LetsTheNewEntryGoAtOnceWhereNoneIsRecent) {
  // Running sums (1/2, 1/2); each step adds 1/3 to each entry, and the new entry has only that.
  const PowerLayer layer({1, 1, 1, 1}, {0, 0, 0, 0}, {{0, 0, 0}}, 2);
  EXPECT_EQ(evictions(layer, h2o(1, 0, 0), 2), (Evictions{{2}, {3}}));
  // A step that gives the new entry nearly all attention keeps it: 0 and 1 tie, and the
  // larger index is evicted.
  const PowerLayer heavy({1, 1, 1e6, 1}, {0, 0, 0, 0}, {{0, 1, 0}}, 2);
  EXPECT_EQ(evictions(heavy, h2o(1, 0, 0), 2), (Evictions{{1}, {3}}));
}

TEST(H2o, NeverLetsSinksGo) {
  // The first two entries get the least attention, but sinks are always kept.
  const PowerLayer layer({1e-9, 1e-9, 1, 2, 3, 4, 5}, std::vector<double>(7, 0), {{1, 1, 1, 1}}, 4);
  EXPECT_EQ(evictions(layer, h2o(1, 2, 1), 4), (Evictions{{2}, {4}, {5}}));
  EXPECT_EQ(evictions(layer, h2o(1, 0, 1), 4), (Evictions{{1}, {0}, {2}}));
}

TEST(H2o, AtTheBudgetOfThoseThatAlwaysStayIsAWindowThatMovesOn) {
  const PowerLayer layer({1, 9, 1, 9, 1, 9, 1, 9}, std::vector<double>(8, 0), {{1, 1, 1, 1, 1}}, 4);
  EXPECT_EQ(evictions(layer, h2o(1, 1, 2), 3), (Evictions{{2}, {3}, {4}, {5}}));
  const Policy streaming{StreamingLlm{1}, {}, {}, {}, {}};
  EXPECT_EQ(evictions(layer, h2o(1, 1, 2), 3), evictions(layer, streaming, 3));
}

TEST(H2o, AtTheBudgetOfThePromptLetsOneGoPerStep) {
  const PowerLayer layer({4, 2, 1, 8, 8}, std::vector<double>(5, 0), {{1, 1, 1}}, 3);
  EXPECT_EQ(evictions(layer, h2o(1, 0, 1), 3), (Evictions{{2}, {1}}));
}

TEST(H2o, OfTiesLetsTheLargerPositionGo) {
  // All get equal attention: 0, 1, 2 tie, since 3 is recent; then 0, 1, 3 tie.
  const PowerLayer layer({1, 1, 1, 1, 1, 1}, std::vector<double>(6, 0), {{0, 0, 0}}, 4);
  EXPECT_EQ(evictions(layer, h2o(1, 0, 2), 4), (Evictions{{2}, {3}}));
}

TEST(H2o, AnswersFromWhoIsThereBeforeAnybodyLeaves) {
  // Step 0 has weights (4, 1, 2, 1)/8 and values 8, 16, 24, 32: o = 4 + 2 + 6 + 4. Then 3 has the least score
  // and is evicted, and step 1 attends to 0, 1, 2, 4.
  const PowerLayer layer({4, 1, 2, 1, 1}, {8, 16, 24, 32, 40}, {{1, 1, 0}}, 3);
  const auto session = make_session();
  session->compress(layer.view(), h2o(1, 0, 0), Positions{3});
  const StepRecord first = session->step(layer.step(0)), second = session->step(layer.step(1));
  EXPECT_NEAR(first.output(0, 0), 16, 1e-13);
  EXPECT_EQ(first.evicted, Positions{3});
  EXPECT_NEAR(second.output(0, 0), 22, 1e-13);
  EXPECT_EQ(second.evicted, Positions{4}) << "1/4 against 1/7 + 1/8 + 1/4";
}

TEST(H2o, ByRemovalKeepsForEverWhoWasOnceAlone) {
  // The prompt's first query sees position 0 alone: without it no output is defined,
  // and its score is +infinity.
  const RandomLayer layer({2, 1, 3, 4}, 6, 6, 8, 3);
  const Policy policy{H2o{6, 0, 0}, ExactRemoval(), {}, {}, {}};
  const auto session = make_session();
  const PromptRecord record = session->compress(layer.view(), policy, Positions{2});
  EXPECT_EQ(record.score(0, 0), INFINITY);
  EXPECT_EQ(record.kept[0].front(), 0);
  for (int64_t t = 0; t < 8; ++t) EXPECT_GT(session->step(layer.step(t)).evicted[0], 0);
}

TEST(H2o, NamesABudgetBelowThoseThatAlwaysStay) {
  const PowerLayer layer({1, 1, 1, 1}, {0, 0, 0, 0}, {{0, 0}}, 4);
  const auto refused = [&](const Policy& policy, int64_t budget) {
    return message_of<InvalidPolicy>(
        [&] { make_session()->compress(layer.view(), policy, Positions{budget}); });
  };
  EXPECT_EQ(refused(h2o(1, 2, 1), 2),
            "budget of 2 entries is below the 2 sinks and 1 recent entries, which are always kept");
  EXPECT_EQ(refused(Policy{H2o{2, 0, {}}, {}, {}, {}, {}}, 1),
            "budget of 1 entries is below the 0 sinks and 2 recent entries, which are always kept")
      << "recent follows window";
  EXPECT_EQ(refused(h2o(3, 0, 0), 2), "window=3 but the trace records only 2 prompt queries");
  EXPECT_EQ(refused(h2o(0, 0, 0), 2), "window=0 but it must be at least 1");
  EXPECT_EQ(refused(h2o(1, -1, 0), 2), "sinks=-1 but it must be at least 0");
  EXPECT_EQ(refused(h2o(1, 0, -1), 2), "recent=-1 but it must be at least 0");
  EXPECT_THROW(make_session()->compress(layer.view(), h2o(1, INT64_MAX, INT64_MAX), Positions{2}),
               InvalidPolicy);
}

}  // namespace
}  // namespace kvbound::reference::h2o_test
