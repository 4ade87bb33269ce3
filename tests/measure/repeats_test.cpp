// What hardware alone gets wrong, and not every time: kernels whose blocks read each other's shared memory,
// and launches that overlap. Everything is repeated very often, and every result is compared.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/eviction/allocation.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/selection.hpp>
#include <kvbound/cuda/session/session.hpp>
#include <kvbound/reference/eviction/allocation.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>

#include "differences.hpp"
#include "gate_layer.hpp"
#include "parity/scores.hpp"
#include "parity/session/decoding_cases.hpp"
#include "parity/session/eviction_cases.hpp"
#ifdef KVBOUND_CUDA_NATIVE
#include "busy_multiprocessors.hpp"
#endif

namespace kvbound::measure {
namespace {

using cuda::kUnwrittenNumber;
using parity::kScoreKinds;
using parity::scores_of;

// ---- clusters ---------------------------------------------------------------------------------------------

enum class Beside { nothing, busy_multiprocessors };

class ClusterRepeats : public parity::DeviceTest, public testing::WithParamInterface<Beside> {
 protected:
  // Calls operation(results), which writes integers to device memory and launches so many clusters, until
  // there were enough of them; every call's results have to be the expected ones.
  static void expect_always(const std::vector<int64_t>& expected, int64_t clusters,
                            const std::function<void(int64_t* results)>& operation) {
    const int64_t enough = is_tiny() ? 1 : GetParam() == Beside::nothing ? 100'000 : 10'000;
    const cuda::Buffer<int64_t> right = cuda::upload(expected);
    cuda::Buffer<int64_t> results = cuda::upload(std::vector<int64_t>(expected.size(), kUnwrittenNumber));
    cuda::Buffer<int> differences = cuda::upload(std::vector<int>{0});
    const auto call = [&] {
      operation(results.data());
      cuda::count_differences(results.data(), right.data(), right.size(), differences.data(), nullptr);
    };
    call();  // so that the kernels are loaded, which may wait for the device
#ifdef KVBOUND_CUDA_NATIVE
    std::optional<cuda::native::BusyMultiprocessors> busy;
    if (GetParam() != Beside::nothing) busy.emplace(cuda::device().multiprocessors * 2 / 5);
#endif
    for (int64_t launched = clusters; launched < enough; launched += clusters) call();
    EXPECT_EQ(cuda::download(differences).front(), 0);
#ifdef KVBOUND_CUDA_NATIVE
    EXPECT_TRUE(!busy || busy->end()) << "some of the multiprocessors were not busy to the end";
#endif
  }
};

// Rows of scores of every kind, and how many of a row are selected, and of these by stage one.
struct Rows {
  int64_t rows, cols;
  std::vector<std::vector<float>> scores;
  std::vector<int64_t> k, stage_one;

  Rows(uint64_t seed, int64_t count, int64_t length) : rows(count), cols(length) {
    for (int64_t r = 0; r < rows; ++r) {
      scores.push_back(scores_of(kScoreKinds[r % std::size(kScoreKinds)], seed + r, cols));
      k.push_back((r + 1) * cols / (rows + 1));
      stage_one.push_back(k.back() * 3 / 5);
    }
  }
  cuda::Buffer<float> on_device() const {
    std::vector<float> all;
    for (const auto& row : scores) all.insert(all.end(), row.begin(), row.end());
    return cuda::upload(all);
  }
  std::vector<double> row(int64_t r) const { return {scores[r].begin(), scores[r].end()}; }
};

// Puts each row's indices to its place among the results.
void put(const std::vector<int64_t>& indices, int64_t row, int64_t cols, std::vector<int64_t>& results) {
  results.resize((row + 1) * cols, kUnwrittenNumber);
  std::ranges::copy(indices, results.begin() + row * cols);
}

// With few scores for each thread, with more, and with most.
std::vector<int64_t> row_lengths() {
  return is_tiny() ? std::vector<int64_t>{5000} : std::vector<int64_t>{5000, 20'000, 70'001};
}
int64_t row_count() { return is_tiny() ? 2 : 32; }

TEST_P(ClusterRepeats, SelectTheReferencesEntries) {
  for (const int64_t cols : row_lengths()) {
    const Rows rows(1, row_count(), cols);
    std::vector<int64_t> expected;
    for (int64_t r = 0; r < rows.rows; ++r)
      put(reference::select_top(rows.row(r), rows.k[r]), r, cols, expected);
    const cuda::Buffer<float> scores = rows.on_device();
    const cuda::Buffer<int64_t> k = cuda::upload(rows.k);
    parity::WorkingMemory memory(cuda::select_top_workspace(rows.rows, cols));
    expect_always(expected, rows.rows, [&](int64_t* results) {
      cuda::select_top(scores.data(), rows.rows, cols, cols, k.data(), {results, cols, nullptr},
                       memory.view(), nullptr);
    });
  }
}

TEST_P(ClusterRepeats, SelectTheReferencesEntriesByTwoStages) {
  for (const int64_t cols : row_lengths()) {
    const Rows attention(1, row_count(), cols), stage_two(100, row_count(), cols);
    std::vector<int64_t> expected, of_stage_one;
    for (int64_t r = 0; r < attention.rows; ++r) {
      const reference::TwoStageSelection selected = reference::select_critical(
          attention.row(r), stage_two.row(r), attention.k[r], attention.stage_one[r]);
      put(selected.selected, r, cols, expected);
      put(selected.stage_one, r, cols, of_stage_one);
    }
    expected.insert(expected.end(), of_stage_one.begin(), of_stage_one.end());
    const cuda::Buffer<float> scores = attention.on_device(), seconds = stage_two.on_device();
    const cuda::Buffer<int64_t> k = cuda::upload(attention.k), counts = cuda::upload(attention.stage_one);
    parity::WorkingMemory memory(cuda::select_critical_workspace(attention.rows, cols));
    expect_always(expected, attention.rows, [&](int64_t* results) {
      cuda::select_critical(scores.data(), seconds.data(), attention.rows, cols, cols, k.data(),
                            counts.data(), {results, cols, nullptr},
                            {results + attention.rows * cols, cols, nullptr}, memory.view(), nullptr);
    });
  }
}

TEST_P(ClusterRepeats, DivideBudgetsAsTheReferenceDoes) {
  constexpr int64_t kLayers = 8, kHeads = 6, kCols = 1500;
  const AdaKv options{{2, 1}};
  std::vector<cuda::Buffer<float>> scores;
  std::vector<int64_t> expected, candidates;
  for (int64_t g = 0; g < kHeads; ++g) candidates.push_back((g + 1) * kCols / 9);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const Rows rows(10 * layer, kHeads, kCols);
    Matrix all(kHeads, kCols);
    for (int64_t g = 0; g < kHeads; ++g) std::ranges::copy(rows.scores[g], all.row(g).begin());
    const std::vector<int64_t> budgets = reference::adakv_budgets(options, all, candidates);
    expected.insert(expected.end(), budgets.begin(), budgets.end());
    scores.push_back(rows.on_device());
  }
  const cuda::Buffer<int64_t> counts = cuda::upload(candidates);
  expect_always(expected, kLayers, [&](int64_t* results) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      cuda::adakv_budgets(options, scores[layer].data(), kHeads, kCols, kCols, counts.data(),
                          results + layer * kHeads, nullptr, nullptr);
    }
  });
}

// Heads with more entries than a block has threads, of which each but the last evicts one.
constexpr int64_t kEntries = 2500;
std::vector<std::vector<int64_t>> positions_of_heads() {
  std::vector<std::vector<int64_t>> positions;
  for (int64_t g = 0; g < row_count(); ++g) positions.push_back(parity::shuffled(g, kEntries));
  return positions;
}
std::vector<int64_t> budgets_of_heads() {
  std::vector<int64_t> budgets(row_count(), kEntries - 1);
  budgets.back() = kEntries;
  return budgets;
}

// What evictions write at first, positions and behind them the slots that are free then: the definition's
// positions, where single precision decides as it does.
std::vector<int64_t> first_results(const std::function<void(int64_t* results)>& evict,
                                   const std::function<std::optional<int64_t>(size_t g)>& position) {
  cuda::Buffer<int64_t> results = cuda::upload(std::vector<int64_t>(2 * row_count(), kUnwrittenNumber));
  evict(results.data());
  std::vector<int64_t> all = cuda::download(results);
  for (int64_t g = 0; g < row_count(); ++g) {
    EXPECT_EQ(all[g], position(g).value_or(all[g])) << "KV head " << g;
  }
  return all;
}

TEST_P(ClusterRepeats, EvictTheSmallestScore) {
  parity::EvictCase c{positions_of_heads(), {}, budgets_of_heads(), 4, 30};
  c.scores = Rows(1, row_count(), kEntries).scores;
  parity::UploadedEvictCase uploaded(c);
  cuda::Buffer<int> status(1);
  const auto evict = [&](int64_t* results) { uploaded.evict(results, results + row_count(), status.data()); };
  const std::vector<int64_t> expected = first_results(evict, [&](size_t g) {
    const std::optional<size_t> slot = parity::evicted_slot(c, g);
    return slot ? c.positions[g][*slot] : -1;
  });
  expect_always(expected, row_count(), evict);
}

TEST_P(ClusterRepeats, EvictTheSmallestScoreOfTwoStages) {
  for (const bool adaptive : {false, true}) {
    if (adaptive && is_tiny()) continue;  // it takes a processor a minute
    const parity::CriticalCase c{.positions = positions_of_heads(),
                                 .budgets = budgets_of_heads(),
                                 .group_size = 4,
                                 .sinks = 4,
                                 .recent = 30,
                                 .epsilon = 1e-4,
                                 .adaptive = adaptive,
                                 .scores = parity::ScoreKind::softmax,
                                 .norms = parity::ScoreKind::softmax};
    const parity::CriticalInput input(c);
    parity::UploadedCriticalCase uploaded(input);
    cuda::Buffer<int> status(1);
    const auto evict = [&](int64_t* results) {
      uploaded.evict(results, results + row_count(), status.data());
    };
    const std::vector<int64_t> expected =
        first_results(evict, [&](size_t g) { return parity::evicted_position(input, g); });
    expect_always(expected, row_count(), evict);
  }
}

#ifdef KVBOUND_CUDA_NATIVE
constexpr Beside kBeside[] = {Beside::nothing, Beside::busy_multiprocessors};
#else
constexpr Beside kBeside[] = {Beside::nothing};  // the emulation runs one kernel at a time
#endif
INSTANTIATE_TEST_SUITE_P(All, ClusterRepeats, testing::ValuesIn(kBeside),
                         [](const testing::TestParamInfo<Beside>& tested) -> std::string {
                           return tested.param == Beside::nothing ? "Alone" : "BesideBusyMultiprocessors";
                         });

// That the repeats can fail.
TEST(Differences, AreCountedAndCleared) {
  std::vector<int64_t> expected(1000, 7);
  cuda::Buffer<int64_t> numbers = cuda::upload(expected);
  for (const size_t other : {0, 500, 999}) expected[other] = 8;
  const cuda::Buffer<int64_t> right = cuda::upload(expected);
  cuda::Buffer<int> differences = cuda::upload(std::vector<int>{40});
  cuda::count_differences(numbers.data(), right.data(), 1000, differences.data(), nullptr);
  EXPECT_EQ(cuda::download(differences).front(), 43);
  EXPECT_EQ(cuda::download(numbers), std::vector<int64_t>(1000, kUnwrittenNumber));
}

// ---- dependent launches -----------------------------------------------------------------------------------

// While it exists no launch overlaps another one.
struct SeparateLaunches {
  SeparateLaunches() { setenv("KVBOUND_SEPARATE_LAUNCHES", "1", 1); }
  ~SeparateLaunches() { unsetenv("KVBOUND_SEPARATE_LAUNCHES"); }
};

class SessionRepeats : public parity::DeviceTest, public testing::WithParamInterface<parity::NamedPolicy> {
 protected:
  // Of a prompt's compression, and of all the steps behind it.
  std::vector<StepRecord> records() const {
    const std::unique_ptr<Session> session = cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::bf16);
    const int64_t budget = decoding_.tokens * 3 / 8;
    session->compress(decoding_.layer(), GetParam().policy,
                      std::vector<int64_t>(decoding_.shape.kv_heads, budget));
    const std::vector<StepView> different = decoding_.steps();
    std::vector<StepView> views;
    for (size_t t = 0; t < (is_tiny() ? 4 : 1000); ++t) views.push_back(different[t % different.size()]);
    return session->steps(views);
  }

 private:
  parity::Decoding decoding_ =
      is_tiny() ? parity::Decoding{} : parity::Decoding{.tokens = 4096, .shape = {32, 8, 128, 256}};
};

TEST_P(SessionRepeats, HaveTheBitsOfSeparateLaunches) {
  const std::vector<StepRecord> expected = [&] {
    const SeparateLaunches separate;
    return records();
  }();
  const std::vector<StepRecord> found = records();
  ASSERT_EQ(found.size(), expected.size());
  for (size_t t = 0; t < found.size() && !HasFailure(); ++t) {
    SCOPED_TRACE("step " + std::to_string(t));
    parity::expect_equal(found[t], expected[t]);
  }
}

// Caches that grow, evictions by one and by two stages, a second attention, merges.
INSTANTIATE_TEST_SUITE_P(All, SessionRepeats,
                         testing::ValuesIn(parity::policies_named({"snapkv+top-k", "h2o+top-k",
                                                                   "h2o+critical", "h2o+joint", "tova+keepkv",
                                                                   "streaming-llm", "streaming-llm+cam"})),
                         [](const auto& tested) { return parity::name_of(tested); });

}  // namespace
}  // namespace kvbound::measure
