// AdaKV's budgets on the device: exactly the reference's, whatever the scores.
#include <algorithm>
#include <string>
#include <vector>

#include <kvbound/cuda/eviction/allocation.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/allocation.hpp>

#include "scores.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

struct Case {
  std::vector<std::vector<float>> scores;  // per KV head
  std::vector<int64_t> candidates;
  Decimal safeguard{2, 1};
};

class AdaKvParity : public DeviceTest {
 protected:
  struct Result {
    std::vector<int64_t> budgets;
    int status;
  };

  static Result run(const Case& c) {
    const auto heads = std::ssize(c.scores), cols = std::ssize(c.scores.front());
    const int64_t stride = cols + 3;
    std::vector<float> memory(heads * stride, std::numeric_limits<float>::quiet_NaN());
    for (int64_t g = 0; g < heads; ++g) std::ranges::copy(c.scores[g], memory.begin() + g * stride);
    const cuda::Buffer<float> scores = cuda::upload(memory);
    const cuda::Buffer<int64_t> candidates = cuda::upload(c.candidates);
    cuda::Buffer<int64_t> budgets = cuda::upload(std::vector<int64_t>(heads, -9));
    cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
    cuda::adakv_budgets({c.safeguard}, scores.data(), heads, cols, stride, candidates.data(), budgets.data(),
                        status.data(), nullptr);
    cuda::synchronise(nullptr);
    return {cuda::download(budgets), cuda::download(status).front()};
  }

  static void expect_parity(const Case& c) {
    Matrix scores(std::ssize(c.scores), std::ssize(c.scores.front()));
    for (int64_t g = 0; g < scores.rows(); ++g) std::ranges::copy(c.scores[g], scores.row(g).begin());
    const Result result = run(c);
    EXPECT_EQ(result.budgets, reference::adakv_budgets({c.safeguard}, scores, c.candidates));
    EXPECT_EQ(result.status, 0);
  }
};

TEST_F(AdaKvParity, MatchesReferenceAcrossShapesScoresAndSafeguards) {
  for (const ScoreKind kind : kScoreKinds) {
    for (const int64_t cols : {1, 31, 32, 33, 700}) {
      for (const Decimal safeguard : {Decimal{0, 0}, Decimal{2, 1}, Decimal{333, 3}, Decimal{1, 0}}) {
        SCOPED_TRACE(std::string(name_of(kind)) + ", " + std::to_string(cols) + " columns, safeguard " +
                     to_string(safeguard));
        Case c{{}, {}, safeguard};
        for (uint64_t g = 0; g < 5; ++g) {
          c.scores.push_back(scores_of(kind, g, cols));
          for (float& score : c.scores.back()) score *= static_cast<float>(1 + g % 3);
          c.candidates.push_back(static_cast<int64_t>(g) * cols / 6);
        }
        expect_parity(c);
      }
    }
  }
}

TEST_F(AdaKvParity, MatchesReferenceForManyHeadsAndLongRows) {
  Case many{{}, std::vector<int64_t>(70, 3), {5, 1}}, long_rows{{}, {20000, 1, 70000}, {25, 2}};
  for (uint64_t g = 0; g < 70; ++g) many.scores.push_back(scores_of(ScoreKind::few_values, g, 17));
  for (uint64_t g = 0; g < 3; ++g) long_rows.scores.push_back(scores_of(ScoreKind::softmax, g, 70001));
  expect_parity(many);
  expect_parity(long_rows);
  without_clusters([&] { expect_parity(long_rows); });
}

// Ties between heads whose rows blocks share: some of the last head's count.
TEST_F(AdaKvParity, CountsEqualScoresOfSmallerHeadsFirst) {
  const std::vector<float> equal(1500, 0.5F), some = scores_of(ScoreKind::few_values, 1, 1500);
  for (const int64_t count : {100, 1000, 1500})
    expect_parity({{equal, some, equal, equal}, {count, 0, count, 7}});
}

// A thread has every 1,024th score of a row, and every 1,024th head.
TEST_F(AdaKvParity, MatchesReferenceAtTheEndsOfABlocksThreads) {
  for (const int64_t cols : {1023, 1024, 1025, 2049}) {
    SCOPED_TRACE(std::to_string(cols) + " columns");
    expect_parity({{scores_of(ScoreKind::few_values, 1, cols), scores_of(ScoreKind::softmax, 2, cols)},
                   {cols - 1, cols / 2},
                   {1, 1}});
  }
  for (const int64_t heads : {1023, 1024, 1025, 4096}) {
    SCOPED_TRACE(std::to_string(heads) + " heads");
    Case c{{}, std::vector<int64_t>(heads, 2), {3, 1}};
    for (int64_t g = 0; g < heads; ++g) {
      c.scores.push_back(scores_of(ScoreKind::few_values, static_cast<uint64_t>(g), 4));
    }
    without_clusters([&] { expect_parity(c); });
  }
}

TEST_F(AdaKvParity, SharesOutNothingAndEverything) {
  expect_parity({{{1, 2, 3}, {4, 5, 6}}, {0, 0}});
  expect_parity({{{1, 2, 3}, {4, 5, 6}}, {3, 3}});
}

TEST_F(AdaKvParity, SharesOutByManyDecimals) {
  expect_parity({{scores_of(ScoreKind::normal, 1, 500), scores_of(ScoreKind::softmax, 2, 500)},
                 {100, 100},
                 {123456789012345678, 18}});
}

TEST_F(AdaKvParity, TellsOfNan) {
  EXPECT_EQ(run({{{1, std::numeric_limits<float>::quiet_NaN()}, {1, 2}}, {1, 1}}).status, 1);
  std::vector<float> shared = scores_of(ScoreKind::normal, 1, 2000);
  shared.back() = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(run({{shared}, {5}}).status, 1);
}

TEST_F(AdaKvParity, GivesTheSameUnderEverySchedule) {
  for (const int64_t cols : {900, 1100}) {
    const Case c{{scores_of(ScoreKind::few_values, 1, cols), scores_of(ScoreKind::softmax, 2, cols)},
                 {300, 200}};
    in_every_schedule([&] { return run(c).budgets; });
  }
}

TEST_F(AdaKvParity, RefusesMoreScoresThanItCanRank) {
  EXPECT_THROW(cuda::adakv_budgets({}, nullptr, 2, cuda::kMostLayerScores, cuda::kMostLayerScores, nullptr,
                                   nullptr, nullptr, nullptr),
               ShapeMismatch);
  EXPECT_THROW(cuda::adakv_budgets({}, nullptr, 2, 10, 9, nullptr, nullptr, nullptr, nullptr), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
