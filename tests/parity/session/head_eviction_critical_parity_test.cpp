// CriticalKV's evictions of a decode step: exactly the definition's where single
// precision decides as it does.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include <kvbound/cuda/session/head_eviction.hpp>
#include <kvbound/reference/core/error.hpp>

#include "eviction_cases.hpp"
#include "parity/scores.hpp"
#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class EvictCriticalParity : public DeviceTest {
 protected:
  struct Result {
    std::vector<int64_t> evicted;
    int status;
  };

  static Result run(const CriticalInput& input) {
    const CriticalCase& c = input.c;
    UploadedCriticalCase uploaded(input);
    const auto heads = c.positions.size();
    cuda::Buffer<int64_t> evicted = cuda::upload(std::vector<int64_t>(heads, -7)),
                          free = cuda::upload(std::vector<int64_t>(heads, -1));
    cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
    uploaded.evict(evicted.data(), free.data(), status.data());
    cuda::synchronise(nullptr);
    const std::vector<int64_t> positions = cuda::download(evicted), slots = cuda::download(free);
    for (size_t g = 0; g < heads; ++g) {
      EXPECT_EQ(positions[g], slots[g] < 0 ? -1 : c.positions[g][slots[g]]);
    }
    return {positions, cuda::download(status).front()};
  }

  static void expect_the_same_under_every_schedule(const std::vector<std::vector<int64_t>>& positions,
                                                   bool adaptive) {
    const std::vector<int64_t> budgets(positions.size(), std::ssize(positions[0]) - 100);
    const CriticalCase c{
        positions,          budgets,           2, 4, 30, 1e-4, GqaProduct::product_of_means, adaptive,
        ScoreKind::softmax, ScoreKind::softmax};
    const CriticalInput input(c);
    in_every_schedule([&] { return run(input).evicted; });
  }

  // Returns for how many heads the eviction is known.
  static int expect_parity(const CriticalCase& c) {
    const CriticalInput input(c);
    const auto [evicted, status] = run(input);
    EXPECT_EQ(status, 0);
    int known = 0;
    for (size_t g = 0; g < c.positions.size(); ++g) {
      const std::optional<int64_t> position = evicted_position(input, g);
      if (!position) continue;
      EXPECT_EQ(evicted[g], *position) << "KV head " << g;
      ++known;
    }
    return known;
  }
};

TEST_F(EvictCriticalParity, EvictsTheSmallestStageTwoScoreOutsideStageOne) {
  // Peaked norms make the smallest stage-two scores of all those of entries in stage one.
  for (const ScoreKind norms : {ScoreKind::softmax, ScoreKind::peaked}) {
    for (const int64_t entries : {1, 2, 31, 32, 33, 300, 1500}) {
      for (const int64_t always : {int64_t{0}, entries / 4}) {
        for (const GqaProduct gqa : {GqaProduct::mean_of_products, GqaProduct::product_of_means}) {
          SCOPED_TRACE(std::to_string(entries) + " entries, " + std::to_string(always) + " always kept");
          expect_parity({{shuffled(1, entries), shuffled(2, entries), shuffled(3, entries)},
                         {entries - 1, entries, entries / 2},
                         3,
                         always,
                         always,
                         1e-4,
                         gqa,
                         false,
                         ScoreKind::softmax,
                         norms});
        }
      }
    }
  }
}

TEST_F(EvictCriticalParity, TakesTheSmallerPositionIntoStageOneAndEvictsTheLarger) {
  for (const ScoreKind scores : {ScoreKind::few_values, ScoreKind::equal, ScoreKind::rising}) {
    for (const ScoreKind norms : {ScoreKind::few_values, ScoreKind::equal}) {
      SCOPED_TRACE(std::string(name_of(scores)) + ", norms " + name_of(norms));
      expect_parity({{shuffled(4, 200), shuffled(5, 200)},
                     {199, 150},
                     1,
                     3,
                     7,
                     0,
                     GqaProduct::mean_of_products,
                     false,
                     scores,
                     norms});
    }
  }
}

// The largest positions that can be ranked.
TEST_F(EvictCriticalParity, TakesTheLargestPositions) {
  for (const int64_t entries : {200, 1100}) {
    std::vector<int64_t> positions = shuffled(4, entries);
    const int64_t last = std::ranges::max(positions);
    for (int64_t& position : positions) position += cuda::kMostPositions - 1 - last;
    EXPECT_EQ(expect_parity({{positions},
                             {entries / 2},
                             1,
                             3,
                             7,
                             0,
                             GqaProduct::mean_of_products,
                             false,
                             ScoreKind::few_values,
                             ScoreKind::few_values}),
              1);
  }
}

TEST_F(EvictCriticalParity, AdaptiveStageOneTakesAsManyEntriesAsHoldHalfOfTheAttention) {
  int known = 0;
  for (const int64_t entries : {1, 2, 33, 300, 1100}) {
    for (const int64_t always : {int64_t{0}, entries / 8, entries / 3}) {
      for (const int64_t group_size : {1, 4}) {
        SCOPED_TRACE(std::to_string(entries) + " entries, " + std::to_string(always) + " always kept");
        known += expect_parity({{shuffled(1, entries), shuffled(2, entries)},
                                {entries - 1, std::max<int64_t>(entries / 5, 1)},
                                group_size,
                                always,
                                always,
                                1e-4,
                                GqaProduct::mean_of_products,
                                true,
                                ScoreKind::softmax,
                                ScoreKind::softmax});
      }
    }
  }
  EXPECT_GE(known, 50) << "hardly anything was compared";
}

TEST_F(EvictCriticalParity, GivesTheSameUnderEverySchedule) {
  for (const bool adaptive : {false, true})
    expect_the_same_under_every_schedule({shuffled(1, 500), shuffled(2, 500)}, adaptive);
}

TEST_F(EvictCriticalParity, AClusterGivesTheSameUnderEverySchedule) {
  expect_the_same_under_every_schedule({shuffled(1, 1500)}, false);
}

TEST_F(EvictCriticalParity, AClusterWithAdaptiveStagesGivesTheSameUnderEverySchedule) {
  expect_the_same_under_every_schedule({shuffled(1, 1500)}, true);
}

// With rising scores the entries that may go are the first of their threads, and stage
// one has the second ones.
TEST_F(EvictCriticalParity, EvictsFromMoreEntriesThanAClusterHasThreads) {
  for (const bool adaptive : {false, true}) {
    for (const ScoreKind scores : {ScoreKind::softmax, ScoreKind::rising}) {
      const CriticalCase c{
          {shuffled(1, 9000)}, {8900}, 1, 4, 30, 1e-4, GqaProduct::mean_of_products, adaptive, scores,
          ScoreKind::softmax};
      EXPECT_EQ(expect_parity(c), 1);
    }
  }
}

TEST_F(EvictCriticalParity, EvictsFromMoreEntriesThanAClusterKeepsTheRanksOf) {
  for (const ScoreKind scores : {ScoreKind::softmax, ScoreKind::rising}) {
    const CriticalCase c{
        {shuffled(1, 131'200)}, {131'100}, 1, 4, 30, 1e-4, GqaProduct::mean_of_products, false, scores,
        ScoreKind::softmax};
    EXPECT_EQ(expect_parity(c), 1);
  }
}

// The candidates are slots 1 to 4, of which stage one takes the one of largest score: slot 4.
TEST_F(EvictCriticalParity, TellsOfNan) {
  const CriticalCase c{.positions = {{0, 1, 2, 3, 4, 5}},
                       .budgets = {5},
                       .sinks = 1,
                       .recent = 1,
                       .scores = ScoreKind::rising,
                       .norms = ScoreKind::equal};
  const auto status_with = [&](std::vector<float> CriticalInput::*numbers, std::vector<int64_t> slots) {
    CriticalInput input(c);
    for (const int64_t slot : slots) (input.*numbers)[slot] = kNan;
    return run(input).status;
  };
  EXPECT_EQ(status_with(&CriticalInput::norms, {}), 0);
  for (const int64_t slot : {1, 2, 3}) {
    SCOPED_TRACE("slot " + std::to_string(slot));
    EXPECT_EQ(status_with(&CriticalInput::norms, {slot}), 1);
    EXPECT_EQ(status_with(&CriticalInput::running, {slot}), 1);
  }
  EXPECT_EQ(status_with(&CriticalInput::norms, {0, 5}), 0) << "always kept";
  EXPECT_EQ(status_with(&CriticalInput::running, {0, 5}), 0) << "always kept";
  EXPECT_EQ(status_with(&CriticalInput::norms, {4}), 0) << "in stage one";
}

// A NaN among the scores of one query head is one in their mean: its entry is the last that stage one takes.
TEST_F(EvictCriticalParity, TellsOfAScoreThatIsNanInOneQueryHead) {
  const CriticalCase c{.positions = {{0, 1, 2, 3, 4, 5}}, .budgets = {5}, .group_size = 2};
  CriticalInput input(c);
  input.running[input.capacity + 4] = input.reduced[4] = kNan;
  EXPECT_EQ(run(input).status, 1);
}

TEST_F(EvictCriticalParity, RefusesMoreEntriesThanCanBeRankedAndNoQueryHeads) {
  const auto evict = [&](int64_t query_heads, int64_t capacity) {
    cuda::evict_critical({}, {1, capacity}, nullptr, {}, std::nullopt, query_heads, nullptr, nullptr, nullptr,
                         nullptr);
  };
  EXPECT_THROW(evict(1, cuda::kMostScores + 9), ShapeMismatch);
  EXPECT_THROW(evict(0, 2), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
