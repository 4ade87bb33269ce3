// CriticalKV on the device: scores of stage two within their error bounds, selections
// equal to the reference's.
#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include <gmock/gmock-matchers.h>

#include <kvbound/cuda/eviction/cluster_selection.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>

#include "scores.hpp"
#include "support.hpp"
#include "support/message_of.hpp"

namespace kvbound::parity {
namespace {

class StageTwoScoresParity : public DeviceTest {};

struct StageTwoInput {
  std::vector<float> head_scores, norms;  // [query_heads, cols], [query_heads, norms_stride]
  int64_t query_heads, kv_heads, cols, norms_stride;
};

StageTwoInput stage_two_input(int64_t query_heads, int64_t kv_heads, int64_t cols) {
  StageTwoInput input{
      scores_of(ScoreKind::softmax, 3, query_heads * cols), {}, query_heads, kv_heads, cols, cols + 5};
  for (int64_t h = 0; h < query_heads; ++h) {
    for (const float norm : scores_of(ScoreKind::softmax, static_cast<uint64_t>(h), input.norms_stride)) {
      input.norms.push_back(1000 * norm);
    }
  }
  return input;
}

std::vector<float> device_scores(const StageTwoInput& input, double epsilon, GqaProduct gqa) {
  const cuda::Buffer<float> head_scores{std::span<const float>(input.head_scores)};
  const cuda::Buffer<float> norms{std::span<const float>(input.norms)};
  Output scores(input.kv_heads * input.cols);
  cuda::stage_two_scores(head_scores.data(), norms.data(), input.norms_stride, input.query_heads,
                         input.kv_heads, input.cols, epsilon, gqa, scores.data(), nullptr);
  return scores.numbers();
}

void hold(Comparator& comparator, const StageTwoInput& input, double epsilon, GqaProduct gqa) {
  const std::vector<double> head_scores(input.head_scores.begin(), input.head_scores.end());
  const std::vector<double> norms(input.norms.begin(), input.norms.end());
  const int64_t group = input.query_heads / input.kv_heads;
  const Matrix exact(group, input.cols);
  std::vector<double> expected, bounds;
  for (int64_t g = 0; g < input.kv_heads; ++g) {
    const MatrixView a(head_scores.data() + g * group * input.cols, group, input.cols);
    const MatrixView n(norms.data() + g * group * input.norms_stride, group, input.cols, input.norms_stride);
    std::ranges::copy(reference::stage_two_scores(a, n, epsilon, gqa), std::back_inserter(expected));
    std::ranges::copy(
        reference::stage_two_score_errors(a, exact, n, exact, epsilon, gqa, reference::single_precision()),
        std::back_inserter(bounds));
  }
  EXPECT_TRUE(comparator.hold(device_scores(input, epsilon, gqa), expected, bounds));
}

TEST_F(StageTwoScoresParity, MatchesReferenceAcrossShapes) {
  Comparator comparator("stage_two_scores");
  for (const GqaProduct gqa : {GqaProduct::mean_of_products, GqaProduct::product_of_means}) {
    for (const double epsilon : {1e-4, 0.0, 0.5}) {
      for (const int64_t cols : {1, 31, 32, 33, 700}) {
        for (const int64_t kv_heads : {1, 2, 6})
          hold(comparator, stage_two_input(6, kv_heads, cols), epsilon, gqa);
      }
    }
  }
  EXPECT_TRUE(comparator.is_tight());
}

TEST_F(StageTwoScoresParity, GivesTheSameBitsUnderEverySchedule) {
  const StageTwoInput input = stage_two_input(4, 2, 300);
  in_every_schedule([&] { return device_scores(input, 1e-4, GqaProduct::mean_of_products); });
}

TEST_F(StageTwoScoresParity, WritesNothingForNoEntries) {
  EXPECT_TRUE(device_scores(stage_two_input(4, 2, 0), 1e-4, GqaProduct::mean_of_products).empty());
}

TEST_F(StageTwoScoresParity, RefusesWhatDoesNotFit) {
  const auto call = [](int64_t norms_stride, int64_t query_heads, int64_t kv_heads) {
    cuda::stage_two_scores(nullptr, nullptr, norms_stride, query_heads, kv_heads, 7, 0,
                           GqaProduct::mean_of_products, nullptr, nullptr);
  };
  EXPECT_THROW(call(6, 4, 2), ShapeMismatch);
  EXPECT_THROW(call(7, 4, 3), ShapeMismatch);
}

class SelectCriticalParity : public DeviceTest {};

struct TwoStageRow {
  std::vector<float> attention, stage_two;
  int64_t k, stage_one_count;
};

struct TwoStages {
  std::vector<std::vector<int64_t>> selected, stage_one;
  int status;
};

TwoStages device_selection(const std::vector<TwoStageRow>& rows, bool want_stage_one = true) {
  std::vector<float> attention, stage_two;
  std::vector<int64_t> k, stage_one_count;
  for (const TwoStageRow& row : rows) {
    attention.insert(attention.end(), row.attention.begin(), row.attention.end());
    stage_two.insert(stage_two.end(), row.stage_two.begin(), row.stage_two.end());
    k.push_back(row.k);
    stage_one_count.push_back(row.stage_one_count);
  }
  const cuda::Buffer<float> device_attention{std::span<const float>(attention)};
  const cuda::Buffer<float> device_stage_two{std::span<const float>(stage_two)};
  const cuda::Buffer<int64_t> device_k{std::span<const int64_t>(k)};
  const cuda::Buffer<int64_t> device_count{std::span<const int64_t>(stage_one_count)};
  const auto row_count = std::ssize(rows);
  const auto cols = std::ssize(rows.front().attention);
  Indices selected(k), stage_one(stage_one_count);
  WorkingMemory memory(cuda::select_critical_workspace(row_count, cols));
  cuda::select_critical(device_attention.data(), device_stage_two.data(), row_count, cols, cols,
                        device_k.data(), device_count.data(), selected.result(),
                        want_stage_one ? stage_one.result() : cuda::SelectionResult{}, memory.view(),
                        nullptr);
  if (!want_stage_one) return {selected.rows(), {}, selected.status()};
  return {selected.rows(), stage_one.rows(), selected.status()};
}

void expect_parity(const std::vector<TwoStageRow>& rows) {
  const TwoStages actual = device_selection(rows);
  EXPECT_EQ(actual.status, 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    const TwoStageRow& row = rows[r];
    SCOPED_TRACE("row " + std::to_string(r) + ": k = " + std::to_string(row.k) + ", stage one " +
                 std::to_string(row.stage_one_count));
    const std::vector<double> attention(row.attention.begin(), row.attention.end());
    const std::vector<double> stage_two(row.stage_two.begin(), row.stage_two.end());
    const auto expected = reference::select_critical(attention, stage_two, row.k, row.stage_one_count);
    EXPECT_EQ(actual.selected[r], expected.selected);
    EXPECT_EQ(actual.stage_one[r], expected.stage_one);
  }
}

// Rows for several k, each with stage one empty, half of k and all of k.
std::vector<TwoStageRow> rows_of(ScoreKind attention, ScoreKind stage_two, int64_t cols) {
  std::vector<TwoStageRow> rows;
  for (const int64_t k : {int64_t{0}, cols / 5, cols / 2, cols}) {
    for (const int64_t count : {int64_t{0}, k / 2, k}) {
      const uint64_t seed = 2 * rows.size();
      rows.push_back({scores_of(attention, seed, cols), scores_of(stage_two, seed + 1, cols), k, count});
    }
  }
  return rows;
}

TEST_F(SelectCriticalParity, MatchesReferenceAcrossShapesAndScores) {
  for (const int64_t cols : {1, 31, 32, 33, 1500}) {
    for (const ScoreKind kind : kScoreKinds) {
      SCOPED_TRACE(std::string(name_of(kind)) + ", " + std::to_string(cols) + " columns");
      expect_parity(rows_of(kind, ScoreKind::softmax, cols));
      expect_parity(rows_of(ScoreKind::softmax, kind, cols));
    }
    expect_parity(rows_of(ScoreKind::few_values, ScoreKind::few_values, cols));
    expect_parity(rows_of(ScoreKind::equal, ScoreKind::equal, cols));
  }
}

TEST_F(SelectCriticalParity, MatchesReferenceForTheLongestRowsOfAClusterAndForLongerOnes) {
  const int64_t cols = cuda::cluster_selection::kMostColumns;
  for (const int64_t more : {int64_t{0}, int64_t{1}, cols}) {
    expect_parity({{scores_of(ScoreKind::softmax, 1, cols + more),
                    scores_of(ScoreKind::few_values, 2, cols + more), cols / 5, cols / 10}});
  }
  without_clusters([&] {
    expect_parity({{scores_of(ScoreKind::softmax, 1, cols), scores_of(ScoreKind::few_values, 2, cols),
                    cols / 5, cols / 10}});
  });
}

TEST_F(SelectCriticalParity, MatchesReferenceForRowsThatBlocksShare) {
  expect_parity(rows_of(ScoreKind::softmax, ScoreKind::few_values, 4097));
  expect_parity(rows_of(ScoreKind::few_values, ScoreKind::normal, 9000));
  const int64_t cols = 40000;  // more than four keys of a thread
  expect_parity({{scores_of(ScoreKind::softmax, 1, cols), scores_of(ScoreKind::few_values, 2, cols), cols / 5,
                  cols / 10}});
}

TEST_F(SelectCriticalParity, PutsNoEntryTwiceWhereBothStagesWantTheSame) {
  const std::vector<float> infinities(40, std::numeric_limits<float>::infinity());
  expect_parity({{infinities, infinities, 17, 9}});
}

TEST_F(SelectCriticalParity, DoesWithoutStageOnesIndices) {
  const std::vector<TwoStageRow> rows = rows_of(ScoreKind::normal, ScoreKind::softmax, 100);
  EXPECT_EQ(device_selection(rows, false).selected, device_selection(rows).selected);
}

TEST_F(SelectCriticalParity, TellsOfNanWhereverTheReferenceDoes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TwoStageRow row{scores_of(ScoreKind::rising, 1, 50), scores_of(ScoreKind::normal, 2, 50), 20, 10};
  TwoStageRow attention = row, stage_two = row, stage_one = row;
  attention.attention[0] = nan;
  stage_two.stage_two[0] = nan;
  stage_one.stage_two[49] = nan;  // stage one has already selected this entry
  EXPECT_EQ(device_selection({attention}).status, 1);
  EXPECT_EQ(device_selection({stage_two}).status, 1);
  EXPECT_EQ(device_selection({stage_one}).status, 0);
}

TEST_F(SelectCriticalParity, TellsOfNanInRowsThatBlocksShare) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TwoStageRow row{scores_of(ScoreKind::rising, 1, 4500), scores_of(ScoreKind::normal, 2, 4500), 20, 10};
  TwoStageRow stage_two = row, stage_one = row;
  stage_two.stage_two[0] = nan;
  stage_one.stage_two[4499] = nan;  // stage one has already selected this entry
  EXPECT_EQ(device_selection({stage_two}).status, 1);
  EXPECT_EQ(device_selection({stage_one}).status, 0);
}

TEST_F(SelectCriticalParity, GivesTheSameUnderEverySchedule) {
  const std::vector<TwoStageRow> rows{
      {scores_of(ScoreKind::few_values, 1, 1200), scores_of(ScoreKind::softmax, 2, 1200), 500, 200}};
  in_every_schedule([&] { return device_selection(rows).selected; });
  const std::vector<TwoStageRow> shared{
      {scores_of(ScoreKind::few_values, 1, 4200), scores_of(ScoreKind::softmax, 2, 4200), 500, 200}};
  in_every_schedule([&] { return device_selection(shared).selected; });
}

TEST_F(SelectCriticalParity, RefusesRowsThatAreTooLong) {
  const auto refusal = [](int64_t columns) {
    return test::message_of<ShapeMismatch>([&] {
      cuda::select_critical(nullptr, nullptr, 1, columns, columns, nullptr, nullptr, {}, {}, {}, nullptr);
    });
  };
  EXPECT_THAT(refusal(cuda::kMostScores + 1), testing::HasSubstr("columns of the scores"));
  EXPECT_THAT(refusal(10), testing::HasSubstr("the workspace has 0 bytes"));
}

}  // namespace
}  // namespace kvbound::parity
