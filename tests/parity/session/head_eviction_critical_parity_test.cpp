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

#include "cache_slots.hpp"
#include "parity/scores.hpp"
#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct CriticalCase {
  std::vector<std::vector<int64_t>> positions;  // per KV head
  std::vector<int64_t> budgets;
  int64_t group_size = 1;
  int64_t sinks = 0, recent = 0;
  double epsilon = 0;
  GqaProduct gqa = GqaProduct::mean_of_products;
  bool adaptive = false;
  ScoreKind scores = ScoreKind::normal;
  ScoreKind norms = ScoreKind::normal;
};

// Running scores, norms and weights of a case, exact in fp32.
struct CriticalInput {
  const CriticalCase& c;
  int64_t capacity = 1, newest = 0;
  std::vector<float> running, norms, weights, reduced;

  explicit CriticalInput(const CriticalCase& given) : c(given) {
    for (const auto& head : c.positions) {
      capacity = std::max(capacity, std::ssize(head) + 1);
      newest = std::max(newest, *std::ranges::max_element(head));
    }
    const auto heads = std::ssize(c.positions) * c.group_size;
    for (int64_t h = 0; h < heads; ++h) {
      const auto seed = static_cast<uint64_t>(3 * h);
      append(running, scores_of(c.scores, seed, capacity));
      append(norms, scores_of(c.norms, seed + 1, capacity));
      std::vector<float> row = scores_of(ScoreKind::softmax, seed + 2, capacity);
      const float sum =
          std::accumulate(row.begin(), row.begin() + std::ssize(c.positions[h / c.group_size]), 0.0f);
      for (float& weight : row) weight /= sum;
      append(weights, row);
    }
    reduced.assign(c.positions.size() * capacity, kNan);
    for (size_t g = 0; g < c.positions.size(); ++g) {
      for (size_t slot = 0; slot < c.positions[g].size(); ++slot) {
        float sum = 0;
        for (int64_t i = 0; i < c.group_size; ++i) sum += at(running, g, i, slot);
        reduced[g * capacity + slot] = sum / static_cast<float>(c.group_size);
      }
    }
  }

  float at(const std::vector<float>& numbers, size_t g, int64_t i, size_t slot) const {
    return numbers[(g * c.group_size + i) * capacity + slot];
  }
  bool is_always_kept(size_t g, size_t slot) const {
    const int64_t position = c.positions[g][slot];
    return position < c.sinks || position > newest - c.recent;
  }
  double stage_two(size_t g, size_t slot) const {
    double products = 0, scores = 0, norm = 0;
    for (int64_t i = 0; i < c.group_size; ++i) {
      products += (at(running, g, i, slot) + c.epsilon) * at(norms, g, i, slot);
      scores += at(running, g, i, slot);
      norm += at(norms, g, i, slot);
    }
    const auto heads = static_cast<double>(c.group_size);
    return c.gqa == GqaProduct::mean_of_products ? products / heads
                                                 : (scores / heads + c.epsilon) * (norm / heads);
  }

 private:
  static void append(std::vector<float>& all, const std::vector<float>& row) {
    all.insert(all.end(), row.begin(), row.end());
  }
};

class EvictCriticalParity : public DeviceTest {
 protected:
  static int64_t stage_one_of(int64_t kept) { return kept * 3 / 5; }

  struct Result {
    std::vector<int64_t> evicted;
    int status;
  };

  static Result run(const CriticalInput& input) {
    const CriticalCase& c = input.c;
    const auto heads = std::ssize(c.positions);
    Slots slots(c.positions, std::vector<int64_t>(heads, 0), input.capacity);
    std::vector<int64_t> counts;
    for (int64_t kept = 0; kept <= input.capacity; ++kept) counts.push_back(stage_one_of(kept));
    const cuda::Buffer<float> running = cuda::upload(input.running), norms = cuda::upload(input.norms),
                              weights = cuda::upload(input.weights), reduced = cuda::upload(input.reduced);
    const cuda::Buffer<int64_t> budgets = cuda::upload(c.budgets), table = cuda::upload(counts);
    cuda::Buffer<int64_t> evicted = cuda::upload(std::vector<int64_t>(heads, -7));
    cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
    const cuda::Buffer<int64_t> newest = cuda::upload(std::vector<int64_t>(heads, input.newest));
    cuda::evict_critical(
        {c.sinks, c.recent, false, budgets.data()}, slots.view(), reduced.data(),
        {running.data(), norms.data(), c.adaptive ? nullptr : table.data(), weights.data(), c.epsilon, c.gqa},
        std::nullopt, heads * c.group_size, newest.data(), evicted.data(), status.data(), nullptr);
    cuda::synchronise(nullptr);
    const std::vector<int64_t> positions = cuda::download(evicted), free = slots.free();
    for (int64_t g = 0; g < heads; ++g) {
      EXPECT_EQ(positions[g], free[g] < 0 ? -1 : c.positions[g][free[g]]);
    }
    return {positions, cuda::download(status).front()};
  }

  // By the definition; nullopt where fp32 may decide otherwise.
  static std::optional<int64_t> expected(const CriticalInput& input, size_t g) {
    const CriticalCase& c = input.c;
    const std::vector<int64_t>& positions = c.positions[g];
    const int64_t leaving = std::ssize(positions) - c.budgets[g];
    std::vector<size_t> candidates;
    for (size_t slot = 0; slot < positions.size(); ++slot) {
      if (!input.is_always_kept(g, slot)) candidates.push_back(slot);
    }
    if (leaving <= 0 || candidates.empty()) return -1;
    std::ranges::sort(candidates, [&](size_t a, size_t b) {
      const float one = input.reduced[g * input.capacity + a], other = input.reduced[g * input.capacity + b];
      return one != other ? one > other : positions[a] < positions[b];
    });
    const int64_t kept = std::max<int64_t>(std::ssize(candidates) - leaving, 0);
    const std::optional<int64_t> count =
        c.adaptive ? adaptive_count(input, g, candidates, kept) : stage_one_of(kept);
    if (!count) return std::nullopt;
    std::optional<size_t> worst;
    for (size_t rank = *count; rank < candidates.size(); ++rank) {
      const size_t slot = candidates[rank];
      const double score = input.stage_two(g, slot), least = worst ? input.stage_two(g, *worst) : 0;
      if (!worst || score < least || (score == least && positions[slot] > positions[*worst])) worst = slot;
    }
    return positions[*worst];
  }

  static std::optional<int64_t> adaptive_count(const CriticalInput& input, size_t g,
                                               const std::vector<size_t>& ranked, int64_t kept) {
    int64_t most = 0;
    for (int64_t i = 0; i < input.c.group_size; ++i) {
      double mass = 0;
      for (size_t slot = 0; slot < input.c.positions[g].size(); ++slot) {
        if (input.is_always_kept(g, slot)) mass += input.at(input.weights, g, i, slot);
      }
      int64_t count = 0;
      while (mass <= 0.5 && count < kept) mass += input.at(input.weights, g, i, ranked[count++]);
      const double before = count > 0 ? mass - input.at(input.weights, g, i, ranked[count - 1]) : 0;
      if (std::abs(mass - 0.5) < 1e-5 || std::abs(before - 0.5) < 1e-5) return std::nullopt;
      most = std::max(most, count);
    }
    return most;
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
      const std::optional<int64_t> position = expected(input, g);
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
