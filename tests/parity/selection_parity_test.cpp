// select_top and rank_top on the device: exactly the reference's entries, whatever the scores.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <kvbound/cuda/eviction/cluster_selection.hpp>
#include <kvbound/cuda/eviction/selection.hpp>
#include <kvbound/reference/eviction/selection.hpp>

#include "scores.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Rows = std::vector<std::vector<float>>;
using Operation = decltype(cuda::select_top);
using Reference = decltype(reference::select_top);

struct Selected {
  std::vector<std::vector<int64_t>> indices;  // per row
  int status;
};

// Rows of scores in device memory, separated by NaN.
class UploadedScores {
 public:
  explicit UploadedScores(const Rows& rows) : rows_(std::ssize(rows)) {
    cols_ = std::ssize(rows.front());
    std::vector<float> memory(rows_ * row_stride(), kNan);
    for (int64_t r = 0; r < rows_; ++r) {
      std::ranges::copy(rows[r], memory.begin() + r * row_stride());
    }
    memory_ = cuda::Buffer<float>(std::span<const float>(memory));
  }
  const float* data() const { return memory_.data(); }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t row_stride() const { return cols_ + 3; }

 private:
  int64_t rows_, cols_ = 0;
  cuda::Buffer<float> memory_;
};

// first: the position of every row's first score
Selected run(Operation operation, const Rows& rows, const std::vector<int64_t>& k, int64_t first = 0) {
  const UploadedScores scores(rows);
  const cuda::Buffer<int64_t> counts{std::span<const int64_t>(k)};
  Indices indices(k);
  WorkingMemory memory(cuda::select_top_workspace(scores.rows(), scores.cols()));
  operation(scores.data(), scores.rows(), scores.cols(), scores.row_stride(), counts.data(),
            indices.result(first), memory.view(), nullptr);
  return {indices.rows(), indices.status()};
}

void expect_same(Operation operation, Reference reference, const Rows& rows, const std::vector<int64_t>& k) {
  const Selected selected = run(operation, rows, k);
  EXPECT_EQ(selected.status, 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::vector<double> scores(rows[r].begin(), rows[r].end());
    EXPECT_EQ(selected.indices[r], reference(scores, k[r])) << "row " << r << ", k = " << k[r];
  }
}

struct Case {
  const char* name;
  Operation* operation;
  Reference* reference;
};

class SelectionParity : public DeviceTest, public testing::WithParamInterface<Case> {
 protected:
  void expect_parity(const Rows& rows, const std::vector<int64_t>& k) {
    expect_same(GetParam().operation, GetParam().reference, rows, k);
  }
};

// Counts of 0, all, and in between.
std::vector<int64_t> counts_of(int64_t cols) {
  std::vector<int64_t> counts{0, 1, cols / 5, cols / 2, cols - 1, cols};
  std::erase_if(counts, [&](int64_t k) { return k < 0 || k > cols; });
  return counts;
}

TEST_P(SelectionParity, MatchesReferenceAcrossShapesAndScores) {
  for (const ScoreKind kind : kScoreKinds) {
    for (const int64_t cols : {1, 31, 32, 33, 100, 1023, 1025, 2600}) {
      SCOPED_TRACE(std::string(name_of(kind)) + ", " + std::to_string(cols) + " columns");
      const std::vector<int64_t> k = counts_of(cols);
      Rows rows;
      for (size_t r = 0; r < k.size(); ++r) rows.push_back(scores_of(kind, 7 * r + 1, cols));
      expect_parity(rows, k);
    }
  }
}

TEST_P(SelectionParity, AddsTheFirstScoresPosition) {
  const Rows rows{scores_of(ScoreKind::normal, 1, 90), scores_of(ScoreKind::softmax, 2, 90)};
  const std::vector<int64_t> k{40, 7};
  Selected expected = run(GetParam().operation, rows, k);
  for (std::vector<int64_t>& indices : expected.indices) {
    for (int64_t& index : indices) index += 1000;
  }
  EXPECT_EQ(run(GetParam().operation, rows, k, 1000).indices, expected.indices);
}

TEST_P(SelectionParity, SelectsNothingFromNothing) {
  EXPECT_EQ(run(*GetParam().operation, {{}, {}}, {0, 0}).indices, (std::vector<std::vector<int64_t>>(2)));
}

TEST_P(SelectionParity, MatchesReferenceWhereKeysDoNotFitIntoSharedMemory) {
  const int64_t cols = 70001;
  without_clusters([&] {
    expect_parity({scores_of(ScoreKind::softmax, 1, cols), scores_of(ScoreKind::few_values, 2, cols)},
                  {cols / 5, cols / 3});
  });
}

// Rows of more than 4,096 columns; a block of the cluster has an eighth of them, a thread one key in 1,024.
TEST_P(SelectionParity, MatchesReferenceForRowsThatBlocksShare) {
  for (const int64_t cols : {4097, 16500, 40000}) {  // four keys of a thread at most, then eight
    for (const ScoreKind kind : {ScoreKind::softmax, ScoreKind::few_values, ScoreKind::rising}) {
      SCOPED_TRACE(std::string(name_of(kind)) + ", " + std::to_string(cols) + " columns");
      expect_parity({scores_of(kind, 1, cols), scores_of(kind, 2, cols), scores_of(kind, 3, cols)},
                    {cols / 5, cols, kind == ScoreKind::softmax ? 0 : 1});
    }
  }
}

TEST_P(SelectionParity, GivesTheSameUnderEveryScheduleForRowsThatBlocksShare) {
  const Rows rows{scores_of(ScoreKind::few_values, 8, 4100)};
  in_every_schedule([&] { return run(*GetParam().operation, rows, {1300}).indices; });
}

TEST_P(SelectionParity, MatchesReferenceForTheLongestRowsOfAClusterAndForLongerOnes) {
  constexpr int64_t kMost = cuda::cluster_selection::kMostColumns;
  for (const ScoreKind kind : {ScoreKind::softmax, ScoreKind::few_values}) {
    for (const int64_t cols : {kMost, kMost + 1}) expect_parity({scores_of(kind, 3, cols)}, {cols / 5});
  }
  without_clusters([&] { expect_parity({scores_of(ScoreKind::equal, 3, kMost)}, {kMost - 1}); });
}

// Of equal scores the positions decide, beyond 18 bits of them.
TEST_P(SelectionParity, MatchesReferenceForAMillionScores) {
  constexpr int64_t kCols = (int64_t{1} << 20) + 77;
  expect_parity({scores_of(ScoreKind::equal, 3, kCols)}, {kCols - 100'000});
}

TEST_P(SelectionParity, TakesInfinitiesAndZerosForTheScoresThatTheyAre) {
  const Rows rows{
      {-0.0f, 0.0f, 1e-45f, -1e-45f, kInfinity, -kInfinity, kInfinity, 3e38f, -3e38f, 0.0f, -0.0f}};
  for (int64_t k = 0; k <= 11; ++k) expect_parity(rows, {k});
}

TEST_P(SelectionParity, LetsTheSmallerPositionWinTies) {
  expect_parity({scores_of(ScoreKind::few_values, 4, 1100), scores_of(ScoreKind::equal, 5, 1100)},
                {550, 277});
}

TEST_P(SelectionParity, TellsOfNan) {
  for (const float nan : {kNan, -kNan}) {
    std::vector<float> scores = scores_of(ScoreKind::normal, 5, 77);
    scores[70] = nan;
    EXPECT_EQ(run(*GetParam().operation, {scores, scores_of(ScoreKind::normal, 6, 77)}, {5, 5}).status, 1);
    std::vector<float> shared = scores_of(ScoreKind::normal, 5, 5000);
    shared[4999] = nan;
    EXPECT_EQ(run(*GetParam().operation, {shared}, {5}).status, 1);
  }
}

TEST_P(SelectionParity, GivesTheSameUnderEverySchedule) {
  const Rows rows{scores_of(ScoreKind::few_values, 8, 1500), scores_of(ScoreKind::softmax, 9, 1500)};
  in_every_schedule([&] { return run(*GetParam().operation, rows, {600, 300}).indices; });
}

TEST_P(SelectionParity, RefusesWhatItCannotSelectFrom) {
  const auto call = [&](int64_t rows, int64_t cols, int64_t row_stride, cuda::Workspace memory) {
    GetParam().operation(nullptr, rows, cols, row_stride, nullptr, {}, memory, nullptr);
  };
  WorkingMemory memory(cuda::select_top_workspace(1, 100) - 1);
  EXPECT_THROW(call(1, 100, 100, memory.view()), ShapeMismatch);
  EXPECT_THROW(call(0, cuda::kMostScores + 1, cuda::kMostScores + 1, {}), ShapeMismatch);
  EXPECT_THROW(call(0, 100, 99, {}), ShapeMismatch);
  EXPECT_THROW(call(-1, 100, 100, {}), ShapeMismatch);
}

INSTANTIATE_TEST_SUITE_P(, SelectionParity,
                         testing::Values(Case{"select_top", cuda::select_top, reference::select_top},
                                         Case{"rank_top", cuda::rank_top, reference::rank_top}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvbound::parity
