#include <algorithm>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/eviction/tova.hpp>
#include <kvbound/reference/session/session.hpp>

#include "support/decoding.hpp"
#include "support/oracle.hpp"
#include "support/power_layer.hpp"
#include "support/session_cases.hpp"

namespace kvbound::reference::tova_test {
namespace {

using namespace test;
using Evictions = std::vector<Positions>;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

Policy tova(int64_t sinks) { return {Tova{sinks}, {}, {}, {}, {}}; }

TEST(LastQueryAttention, IsThatOfTheLastPromptQuery) {
  // The earlier queries would invert the weights.
  const PowerLayer layer({1, 2, 5}, {0, 0, 0}, {{-1, -1, 1}}, 3);
  const Matrix weights = last_query_attention(layer.view());
  ASSERT_EQ(weights.rows(), 1);
  EXPECT_DOUBLE_EQ(weights(0, 0), 1.0 / 8);
  EXPECT_DOUBLE_EQ(weights(0, 1), 2.0 / 8);
  EXPECT_DOUBLE_EQ(weights(0, 2), 5.0 / 8);
}

TEST(LastQueryAttention, NeedsAQuery) {
  const RandomLayer layer({2, 1, 3, 2}, 6, 0, 1, 1);
  EXPECT_EQ(message_of<ShapeMismatch>([&] { last_query_attention(layer.view()); }),
            "window is 1 but 0 prompt queries are recorded");
}

TEST(LastQueryAttention, RefusesNonNumbers) {
  const PowerLayer layer({1, INFINITY, 1}, {0, 0, 0}, {{1}}, 3);
  EXPECT_THROW(last_query_attention(layer.view()), NonFinite);
}

TEST(LastQueryAttentionOracle, IsMetWithinTheDerivedBounds) {
  const RandomLayer layer({6, 2, 5, 3}, 50, 8, 0, 1);
  EXPECT_TRUE(
      oracle::all_within(last_query_attention(layer.view()), oracle::window_attention(layer.view(), 1)));
}

TEST(Tova, KeepsSinksAndWhomTheLastQueryHeedsMost) {
  const PowerLayer layer({1, 8, 2, 1, 4}, {0, 0, 0, 0, 0}, {{-1, 1}}, 5);
  const auto kept = [&](int64_t sinks, int64_t budget) {
    return make_session()->compress(layer.view(), tova(sinks), Positions{budget}).kept[0];
  };
  EXPECT_EQ(kept(0, 2), (Positions{1, 4}));
  EXPECT_EQ(kept(1, 2), (Positions{0, 1}));
  EXPECT_EQ(kept(2, 2), (Positions{0, 1})) << "sinks alone";
  EXPECT_EQ(kept(0, 4), (Positions{0, 1, 2, 4})) << "0 and 3 tie: the smaller stays";
  EXPECT_EQ(kept(3, 5), range(0, 5));
  const PromptRecord record = make_session()->compress(layer.view(), tova(2), Positions{3});
  EXPECT_EQ(record.score_positions, range(0, 5));
  const double expected[] = {1, 8, 2, 1, 4};
  for (int64_t j = 0; j < 5; ++j) EXPECT_NEAR(record.score(0, j), expected[j] / 16, 1e-15);
}

TEST(Tova, ForgetsWhatEarlierQueriesPaid) {
  // Step 0 has weights (4, 1, 2, 8)/15: 1 is evicted. Step 1 inverts them, (1/4, 1/2, 1/8, 1): 3 is
  // evicted, which had the most.
  const PowerLayer layer({4, 1, 2, 8, 1}, {0, 0, 0, 0, 0}, {{1, 1, -1}}, 3);
  EXPECT_EQ(evictions(layer, tova(0), 3), (Evictions{{1}, {3}}));
}

TEST(Tova, LetsTheNewEntryGoAtOnceIfItIsHeededLeast) {
  const PowerLayer layer({4, 2, 1, 8}, {0, 0, 0, 0}, {{1, 1, 1}}, 2);
  EXPECT_EQ(evictions(layer, tova(0), 2), (Evictions{{2}, {1}}));
}

TEST(Tova, NeverLetsSinksGo) {
  const PowerLayer layer({1, 2, 8, 4, 3}, std::vector<double>(5, 0), {{1, 1, 1}}, 3);
  EXPECT_EQ(evictions(layer, tova(2), 3), (Evictions{{3}, {4}}));
  EXPECT_EQ(evictions(layer, tova(3), 3), (Evictions{{3}, {4}})) << "only the new one may go";
  EXPECT_EQ(evictions(layer, tova(0), 3), (Evictions{{0}, {1}}));
}

TEST(Tova, OfTiesLetsTheLargerPositionGoWhereverItLies) {
  // Entry 0 is evicted first, and 4 takes its slot in memory. Then 1, 2, 3 and 4 tie.
  const PowerLayer layer({0.5, 1, 1, 1, 1, 2}, std::vector<double>(6, 0), {{1, 1, 1}}, 4);
  EXPECT_EQ(evictions(layer, tova(0), 4), (Evictions{{0}, {4}}));
  // All weights are equal: the newest entry is evicted.
  const PowerLayer tied({1, 1, 1, 1, 1}, std::vector<double>(5, 0), {{0, 3, -2}}, 3);
  EXPECT_EQ(evictions(tied, tova(0), 3), (Evictions{{3}, {4}}));
}

TEST(Tova, TakesTheMeanOverTheGroupsQueryHeads) {
  // Heads 0 and 1 have weights (4, 1, 2, 1)/8 and inverted (1, 4, 2, 4)/11: by their sum 2 is last,
  // which it is in neither head.
  const PowerLayer layer({4, 1, 2, 1}, {0, 0, 0, 0}, {{1, 1}, {-1, -1}}, 3);
  EXPECT_EQ(evictions(layer, tova(0), 3), (Evictions{{2}}));
}

TEST(Tova, ByValueCountsHowLargeItIs) {
  // Weights (1, 2, 4, 8)/15 of values 8, 1, 1, 2: products 8, 2, 4, 16.
  const PowerLayer layer({1, 2, 4, 8}, {8, 1, 1, 2}, {{1, 1}}, 3);
  EXPECT_EQ(evictions(layer, Policy{Tova{0}, ObcacheValue(), {}, {}, {}}, 3), (Evictions{{1}}));
  EXPECT_EQ(evictions(layer, tova(0), 3), (Evictions{{0}}));
}

TEST(Tova, NamesABudgetBelowItsSinks) {
  const PowerLayer layer({1, 1, 1, 1}, {0, 0, 0, 0}, {{0}}, 4);
  const auto refused = [&](int64_t sinks, int64_t budget) {
    return message_of<InvalidPolicy>(
        [&] { make_session()->compress(layer.view(), tova(sinks), Positions{budget}); });
  };
  EXPECT_EQ(refused(3, 2),
            "budget of 2 entries is below the 3 sinks and 0 recent entries, which are always kept");
  EXPECT_EQ(refused(-1, 2), "sinks=-1 but it must be at least 0");
  const RandomLayer unrecorded({2, 1, 3, 2}, 6, 0, 1, 1);
  EXPECT_EQ(
      message_of<InvalidPolicy>([&] { make_session()->compress(unrecorded.view(), tova(0), Positions{2}); }),
      "window=1 but the trace records only 0 prompt queries");
}

}  // namespace
}  // namespace kvbound::reference::tova_test
