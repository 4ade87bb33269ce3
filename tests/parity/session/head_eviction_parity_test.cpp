// The running scores of a decode step within their bounds, and exactly the reference's
// eviction for given scores.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/cuda/session/head_eviction.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/bounds/group_errors.hpp>
#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/group_reduction.hpp>

#include "eviction_cases.hpp"
#include "parity/scores.hpp"
#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct UpdateCase {
  std::vector<int64_t> entries;  // per KV head
  int64_t group_size = 2;
  StepUpdate update = StepUpdate::accumulate;
  GroupReduction reduction = GroupReduction::mean;
  bool votes = false;
};

std::string text_of(const UpdateCase& c) {
  return std::to_string(c.entries.front()) + " entries, " + std::to_string(c.group_size) + " heads, " +
         (c.update == StepUpdate::accumulate ? "accumulate" : "replace") +
         (c.reduction == GroupReduction::mean ? ", mean" : ", sum") + (c.votes ? ", votes" : "");
}

class UpdateScoresParity : public DeviceTest {
 protected:
  // Running and reduced scores after a step, and the numbers that they follow from.
  struct Numbers {
    Matrix logits, running;  // [query_heads, capacity]
    Matrix log_votes;        // [kv_heads, capacity]
    std::vector<double> log_sum_exp;
  };

  void expect_parity(const UpdateCase& c) {
    SCOPED_TRACE(text_of(c));
    const Numbers given = numbers_of(c);
    const std::vector<std::vector<float>> results = in_every_schedule([&] { return run(c, given); });
    const auto heads = std::ssize(c.entries);
    for (int64_t g = 0; g < heads; ++g) {
      if (c.entries[g] > 0) hold(c, given, g, results);
      expect_unwritten_behind(c, given, g, results);
    }
  }

  Comparator running_{"update_scores, running"}, reduced_{"update_scores, reduced"},
      weights_{"update_scores, weights"};

 private:
  static int64_t capacity(const UpdateCase& c) { return *std::ranges::max_element(c.entries) + 2; }
  static int64_t newest(const UpdateCase& c, int64_t g) { return c.entries[g] / 2; }

  static Numbers numbers_of(const UpdateCase& c) {
    const auto kv_heads = std::ssize(c.entries);
    const int64_t query_heads = kv_heads * c.group_size;
    const auto singles = [&](uint64_t seed, int64_t rows, double size, auto change) {
      const Tensor random = random_tensor(seed, 1, rows, capacity(c), size);
      Matrix matrix(rows, capacity(c));
      std::ranges::transform(random.numbers(), matrix.data(),
                             [&](double x) { return static_cast<double>(static_cast<float>(change(x))); });
      return matrix;
    };
    Numbers given{singles(1, query_heads, 3, [](double x) { return x; }),
                  singles(2, query_heads, 1, [](double x) { return std::abs(x); }),
                  singles(3, kv_heads, 1, [](double x) { return std::log(1 + std::abs(x)); }),
                  {}};
    for (int64_t h = 0; h < query_heads; ++h) given.log_sum_exp.push_back(8 + static_cast<double>(h) / 4);
    return given;
  }

  static cuda::Buffer<float> as_singles(VectorView numbers) {
    return cuda::upload(std::vector<float>(numbers.begin(), numbers.end()));
  }

  static std::vector<std::vector<float>> run(const UpdateCase& c, const Numbers& given) {
    const auto kv_heads = std::ssize(c.entries);
    const int64_t query_heads = kv_heads * c.group_size;
    std::vector<std::vector<int64_t>> positions;
    std::vector<int64_t> newest_slots;
    for (int64_t g = 0; g < kv_heads; ++g) {
      positions.push_back(ascending(c.entries[g]));
      newest_slots.push_back(newest(c, g));
    }
    Slots slots(positions, newest_slots, capacity(c));
    const cuda::Buffer<float> logits = as_singles(given.logits.numbers()),
                              votes = as_singles(given.log_votes.numbers()),
                              sums = as_singles(given.log_sum_exp);
    const cuda::StepScores step{nullptr, logits.data(), sums.data(), c.votes ? votes.data() : nullptr};
    const auto updated = [&](auto apply) {
      cuda::Buffer<float> running = as_singles(given.running.numbers());
      Output reduced(kv_heads * capacity(c)), weights(query_heads * capacity(c));
      apply(cuda::ScoreUpdate{step, c.update, c.reduction, {running.data(), reduced.data(), weights.data()}});
      return std::vector{cuda::download(running), reduced.numbers(), weights.numbers()};
    };
    const auto results = updated([&](const cuda::ScoreUpdate& update) {
      cuda::update_scores(update, slots.view(), query_heads, nullptr);
    });
    const auto of_eviction =
        updated([&](const cuda::ScoreUpdate& update) { evict(slots, query_heads, update); });
    EXPECT_TRUE(same_bits(results, of_eviction)) << "an eviction updates to other bits";
    return results;
  }

  // With an update of the running scores, and budgets that are not exceeded; two entries are always kept.
  static void evict(Slots& slots, int64_t query_heads, const cuda::ScoreUpdate& update) {
    const int64_t kv_heads = slots.view().kv_heads;
    const auto all = [&](int64_t number) { return cuda::upload(std::vector<int64_t>(kv_heads, number)); };
    const cuda::Buffer<int64_t> budgets = all(5000), newest = all(0);
    cuda::Buffer<int64_t> evicted = all(-7);
    cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
    cuda::evict({3, 0, false, budgets.data()}, slots.view(), update, std::nullopt, query_heads, newest.data(),
                evicted.data(), status.data(), nullptr);
    EXPECT_EQ(cuda::download(evicted), std::vector<int64_t>(kv_heads, -1));
  }

  void hold(const UpdateCase& c, const Numbers& given, int64_t g,
            const std::vector<std::vector<float>>& results) {
    const reference::Arithmetic single = reference::single_precision();
    const int64_t entries = c.entries[g], first = g * c.group_size;
    Matrix expected(c.group_size, entries), errors = expected, own = expected, own_errors = expected;
    std::vector<float> actual, actual_own;
    for (int64_t i = 0; i < c.group_size; ++i) {
      for (int64_t slot = 0; slot < entries; ++slot) {
        const int64_t h = first + i;
        const double z = given.logits(h, slot), votes = c.votes ? given.log_votes(g, slot) : 0,
                     sum = given.log_sum_exp[h], weight = std::exp(z + votes - sum);
        const double off = weight * std::expm1(2 * single.unit * (2 * std::abs(z + votes) + std::abs(sum)) +
                                               single.exponential);
        const bool adds = c.update == StepUpdate::accumulate && slot != newest(c, g);
        expected(i, slot) = weight + (adds ? given.running(h, slot) : 0);
        errors(i, slot) = adds ? reference::running_sum_error(expected(i, slot), 0, off, single) : off;
        actual.push_back(results[0][h * capacity(c) + slot]);
        own(i, slot) = weight;
        own_errors(i, slot) = off;
        actual_own.push_back(results[2][h * capacity(c) + slot]);
      }
    }
    EXPECT_TRUE(running_.hold(actual, expected.numbers(), errors.numbers()));
    EXPECT_TRUE(weights_.hold(actual_own, own.numbers(), own_errors.numbers()));
    const Matrix reduced = reference::reduce_group(expected, c.group_size, c.reduction);
    const Matrix off = reference::group_errors(expected, errors, c.group_size, c.reduction, single);
    const std::span<const float> row = std::span(results[1]).subspan(g * capacity(c), entries);
    EXPECT_TRUE(reduced_.hold(row, reduced.numbers(), off.numbers()));
  }

  // Behind the entries in use.
  static void expect_unwritten_behind(const UpdateCase& c, const Numbers& given, int64_t g,
                                      const std::vector<std::vector<float>>& results) {
    for (int64_t slot = c.entries[g]; slot < capacity(c); ++slot) {
      EXPECT_TRUE(Output::is_unwritten(results[1][g * capacity(c) + slot])) << "slot " << slot;
      for (int64_t h = g * c.group_size; h < (g + 1) * c.group_size; ++h) {
        EXPECT_EQ(results[0][h * capacity(c) + slot], static_cast<float>(given.running(h, slot)))
            << "query head " << h << ", slot " << slot;
        EXPECT_TRUE(Output::is_unwritten(results[2][h * capacity(c) + slot]))
            << "query head " << h << ", slot " << slot;
      }
    }
  }
};

TEST_F(UpdateScoresParity, MatchesReferenceAcrossSizesAndRules) {
  for (const int64_t entries : {0, 1, 31, 32, 33, 2100}) {
    for (const int64_t group_size : {1, 2, 5}) {
      for (const StepUpdate update : {StepUpdate::accumulate, StepUpdate::replace}) {
        for (const GroupReduction reduction : {GroupReduction::mean, GroupReduction::sum}) {
          expect_parity({{entries, 7}, group_size, update, reduction, entries % 2 == 0});
        }
      }
    }
  }
  EXPECT_TRUE(running_.is_tight());
  EXPECT_TRUE(reduced_.is_tight());
  EXPECT_TRUE(weights_.is_tight());
}

TEST_F(UpdateScoresParity, TakesOtherScoresAsTheyAre) {
  const std::vector<float> contributions{1, 2, 3, 4, 5, 6, 7, 8};
  const cuda::Buffer<float> device = cuda::upload(contributions);
  cuda::Buffer<float> running = cuda::upload(std::vector<float>(8, 10));
  Slots slots({{3, 1, 0}}, {1}, 4);
  Output reduced(4);
  cuda::update_scores({{.contributions = device.data()},
                       StepUpdate::accumulate,
                       GroupReduction::sum,
                       {running.data(), reduced.data()}},
                      slots.view(), 2, nullptr);
  EXPECT_EQ(cuda::download(running), (std::vector<float>{11, 2, 13, 10, 15, 6, 17, 10}));
  std::vector<float> sums = reduced.numbers();
  EXPECT_TRUE(Output::is_unwritten(sums.back()));
  sums.pop_back();
  EXPECT_EQ(sums, (std::vector<float>{26, 8, 30}));
}

// As many as a hundred requests of a model with many heads have in a decode step.
TEST_F(UpdateScoresParity, TakesMoreHeadsThanAGridHasRowsAlongY) {
  constexpr int64_t kHeads = 70'001;
  std::vector<float> contributions;
  for (int64_t h = 0; h < kHeads; ++h) contributions.push_back(static_cast<float>(h));
  const cuda::Buffer<float> device = cuda::upload(contributions);
  Output running(kHeads);
  Slots slots(std::vector<std::vector<int64_t>>(kHeads, {0}), std::vector<int64_t>(kHeads, 0), 1);
  cuda::update_scores(
      {{.contributions = device.data()}, StepUpdate::replace, GroupReduction::sum, {running.data()}},
      slots.view(), kHeads, nullptr);
  EXPECT_EQ(running.numbers(), contributions);
}

TEST_F(UpdateScoresParity, RefusesHeadsThatDoNotFit) {
  Slots slots({{0}, {0}}, {0, 0}, 1);
  EXPECT_THROW(cuda::update_scores({}, slots.view(), 3, nullptr), ShapeMismatch);
  EXPECT_THROW(
      cuda::evict({}, slots.view(), cuda::ScoreUpdate{}, std::nullopt, 3, nullptr, nullptr, nullptr, nullptr),
      ShapeMismatch);
}

class EvictParity : public DeviceTest {
 protected:
  struct Result {
    std::vector<int64_t> evicted, free;
    int status;
  };

  static Result run(const EvictCase& c) {
    UploadedEvictCase uploaded(c);
    const auto heads = c.positions.size();
    cuda::Buffer<int64_t> evicted = cuda::upload(std::vector<int64_t>(heads, -7)),
                          free = cuda::upload(std::vector<int64_t>(heads, -1));
    cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
    uploaded.evict(evicted.data(), free.data(), status.data());
    cuda::synchronise(nullptr);
    return {cuda::download(evicted), cuda::download(free), cuda::download(status).front()};
  }

  // Long heads are shared by a cluster's blocks where there are clusters, which must not matter.
  static void expect_parity(const EvictCase& c) {
    expect_evictions(c, run(c));
    without_clusters([&] { expect_evictions(c, run(c)); });
  }

 private:
  static void expect_evictions(const EvictCase& c, const Result& actual) {
    EXPECT_EQ(actual.status, 0);
    for (size_t g = 0; g < c.positions.size(); ++g) {
      const std::optional<size_t> slot = evicted_slot(c, g);
      EXPECT_EQ(actual.evicted[g], slot ? c.positions[g][*slot] : -1) << "KV head " << g;
      EXPECT_EQ(actual.free[g], slot ? static_cast<int64_t>(*slot) : -1) << "KV head " << g;
    }
  }
};

TEST_F(EvictParity, EvictsTheSmallestScoreOfThoseThatMayGo) {
  for (const ScoreKind kind : kScoreKinds) {
    for (const int64_t entries : {1, 2, 31, 32, 33, 1025, 2500}) {
      for (const int64_t always : {int64_t{0}, entries / 4}) {
        SCOPED_TRACE(std::string(name_of(kind)) + ", " + std::to_string(entries) + " entries");
        expect_parity(
            {{shuffled(1, entries), shuffled(2, entries), shuffled(3, entries)},
             {scores_of(kind, 4, entries), scores_of(kind, 5, entries), scores_of(kind, 6, entries)},
             {entries - 1, entries, entries / 2},
             always,
             always});
      }
    }
  }
}

TEST_F(EvictParity, EvictsTheLargerPositionOfATie) {
  expect_parity({{{4, 9, 2, 7}}, {{1, 0, 0, 0}}, {3}});
  expect_parity({{{4, 9, 2, 7}}, {{-0.0f, 0, -0.0f, 0}}, {3}});
}

TEST_F(EvictParity, TakesInfinitiesForTheScoresThatTheyAre) {
  expect_parity({{{0, 1, 2}}, {{kInfinity, 3, kInfinity}}, {2}, 0, 0});
  expect_parity({{{0, 1, 2}}, {{kInfinity, kInfinity, kInfinity}}, {2}});
}

TEST_F(EvictParity, EvictsWithoutScoresTheEntryThatIsNoLongerRecent) {
  expect_parity({{{0, 1, 5, 9, 7}, {0, 1, 6, 7, 8}}, {}, {4, 5}, 2, 0, true});
}

TEST_F(EvictParity, EvictsNothingWhereAllAreAlwaysKept) {
  expect_parity({{{0, 1, 2, 3}}, {{1, 1, 1, 1}}, {3}, 2, 2});
}

TEST_F(EvictParity, TellsOfNan) {
  EXPECT_EQ(run({{{0, 1, 2}}, {{1, kNan, 2}}, {2}}).status, 1);
  EXPECT_EQ(run({{{0, 1, 2}}, {{1, kNan, 2}}, {2}, 2}).status, 0)
      << "nobody asks for an always-kept entry's score";
}

TEST_F(EvictParity, GivesTheSameUnderEverySchedule) {
  for (const int64_t entries : {700, 3000}) {
    const EvictCase given{
        {shuffled(1, entries), shuffled(2, entries)},
        {scores_of(ScoreKind::few_values, 3, entries), scores_of(ScoreKind::softmax, 4, entries)},
        {entries - 1, entries - 100},
        3,
        50};
    in_every_schedule([&] {
      const Result result = run(given);
      return std::vector<std::vector<int64_t>>{result.evicted, result.free};
    });
  }
}

}  // namespace
}  // namespace kvbound::parity
