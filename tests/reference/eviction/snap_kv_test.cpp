#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/eviction/window_logits.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference::snap_kv_test {
namespace {

using test::matrix;
using test::message_of;
using test::RandomLayer;

std::vector<double> list(VectorView numbers) { return {numbers.begin(), numbers.end()}; }

// One head of dimension 1 with 3 tokens and all keys 0: every query attends equally to
// the tokens that it sees.
struct UniformLayer {
  Tensor keys{1, 3, 1}, values{1, 3, 1}, queries{1, 3, 1};
  Matrix output_projection{1, 1};
  LayerView view() const { return {{1, 1, 1, 1}, 1, keys, values, queries, output_projection}; }
};

TEST(SnapKv, KeepsTheWindowAndTheLargestPooledMeansOfEachGroup) {
  const RandomLayer layer({4, 2, 3, 5}, 20, 6, 1, 7);
  const Matrix sums = window_attention_sums(layer.view(), 4);
  int64_t asked = 0;
  const SnapKvSelection selection =
      snap_kv(layer.view(), {4, 4}, 3, std::vector<int64_t>{4, 9}, [&](int64_t window) -> const Matrix& {
        asked = window;
        return sums;
      });
  EXPECT_EQ(asked, 4);
  const Matrix pooled = max_pool(window_attention(layer.view(), 4).view().middle_cols(0, 16), 3);
  EXPECT_EQ(list(selection.head_scores.numbers()), list(pooled.numbers()));
  EXPECT_EQ(list(selection.scores.numbers()), list(group_mean(pooled, 2).numbers()));
  EXPECT_EQ(selection.kept[0], (std::vector<int64_t>{16, 17, 18, 19})) << "a budget of the window alone";
  std::vector<int64_t> expected = select_top(selection.scores.row(1), 5);
  expected.insert(expected.end(), {16, 17, 18, 19});
  EXPECT_EQ(selection.kept[1], expected);
}

TEST(WindowAttention, IsTheMeanOverTheWindowsQueries) {
  // The last two queries sit at positions 1 and 2: weights (1/2, 1/2, 0) and (1/3, 1/3, 1/3), so the mean is
  // (5/12, 5/12, 2/12).
  const Matrix mean = window_attention(UniformLayer().view(), 2);
  ASSERT_EQ(mean.rows(), 1);
  ASSERT_EQ(mean.cols(), 3);
  EXPECT_DOUBLE_EQ(mean(0, 0), 5.0 / 12);
  EXPECT_DOUBLE_EQ(mean(0, 1), 5.0 / 12);
  EXPECT_DOUBLE_EQ(mean(0, 2), 2.0 / 12);
}

TEST(WindowAttention, OfOneQueryIsThatQuerysAttention) {
  EXPECT_EQ(list(window_attention(UniformLayer().view(), 1).numbers()), std::vector<double>(3, 1.0 / 3));
}

TEST(WindowAttention, OfTheWholePromptCountsTheFutureAsZero) {
  // Rows (1, 0, 0), (1/2, 1/2, 0), (1/3, 1/3, 1/3): means (11/18, 5/18, 2/18).
  const Matrix mean = window_attention(UniformLayer().view(), 3);
  EXPECT_DOUBLE_EQ(mean(0, 0), 11.0 / 18);
  EXPECT_DOUBLE_EQ(mean(0, 1), 5.0 / 18);
  EXPECT_DOUBLE_EQ(mean(0, 2), 2.0 / 18);
}

TEST(WindowAttention, NamesAWindowThatIsNotRecorded) {
  const UniformLayer layer;
  for (const int64_t window : {4, 0, -1}) {
    EXPECT_EQ(message_of<ShapeMismatch>([&] { window_attention(layer.view(), window); }),
              "window is " + std::to_string(window) + " but 3 prompt queries are recorded");
  }
}

TEST(WindowAttention, RefusesNonNumbers) {
  UniformLayer layer;
  layer.queries.slice(0)(2, 0) = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(window_attention(layer.view(), 1), NonFinite);
}

TEST(VisitWindowAttention, ShowsEveryQueryOnceInOrder) {
  const RandomLayer layer({4, 2, 3, 2}, 80, 70, 0, 5);
  for (const int64_t window : {1, 31, 32, 33, 70}) {
    Matrix seen, of_its_neighbour;
    visit_window_attention(layer.view(), 1, window, [&](int64_t query_head, VectorView weights) {
      ASSERT_TRUE(query_head == 2 || query_head == 3) << "the query heads of KV head 1";
      (query_head == 3 ? seen : of_its_neighbour).append_row(weights);
    });
    ASSERT_EQ(of_its_neighbour.rows(), window);
    const LayerView view = layer.view();
    const Matrix all_at_once = attention_weights(view.queries.slice(3).middle_rows(70 - window, window),
                                                 view.keys.slice(1), view.scale, 80 - window);
    ASSERT_EQ(seen.rows(), window);
    for (int64_t i = 0; i < window; ++i) {
      const int64_t position = 80 - window + i;
      for (int64_t j = position + 1; j < 80; ++j) ASSERT_EQ(seen(i, j), 0) << "the future";
      for (int64_t j = 0; j <= position; ++j) ASSERT_GT(seen(i, j), 0);
    }
    const oracle::Rows exact =
        oracle::causal_softmax(oracle::logits(view.queries.slice(3).middle_rows(70 - window, window),
                                              view.keys.slice(1), view.scale),
                               80 - window);
    EXPECT_TRUE(oracle::all_within(seen, exact));
    EXPECT_TRUE(oracle::all_within(all_at_once, exact));
  }
}

// Six query heads share a KV head, more than are processed at a time.
TEST(WindowAttention, IsTheMeanOfWhatVisitorsSeeForAnyNumberOfHeads) {
  const RandomLayer layer({12, 2, 3, 2}, 90, 40, 0, 6);
  const Matrix mean = window_attention(layer.view(), 40);
  EXPECT_TRUE(oracle::all_within(mean, oracle::window_attention(layer.view(), 40)));
  Matrix sum(12, 90);
  std::vector<int64_t> queries(12, 0);
  for (const int64_t g : {0, 1}) {
    visit_window_attention(layer.view(), g, 40, [&](int64_t query_head, VectorView weights) {
      ASSERT_EQ(query_head / 6, g);
      ++queries[query_head];
      for (int64_t j = 0; j < 90; ++j) sum(query_head, j) += weights[j];
    });
  }
  EXPECT_EQ(queries, std::vector<int64_t>(12, 40));
  for (int64_t h = 0; h < 12; ++h) {
    for (int64_t j = 0; j < 90; ++j) ASSERT_EQ(sum(h, j) / 40, mean(h, j)) << "the same operations";
  }
}

TEST(MaxPool, TakesTheLargestNeighbourAndIsCutAtTheEnds) {
  // Width 3: max(0,4), max(0,4,1), max(4,1,2), max(1,2,6), max(2,6).
  EXPECT_EQ(list(max_pool(matrix({{0, 4, 1, 2, 6}}), 3).numbers()), (std::vector<double>{4, 4, 4, 6, 6}));
}

TEST(MaxPool, OfWidthOneChangesNothing) {
  EXPECT_EQ(list(max_pool(matrix({{3, -1, 2}}), 1).numbers()), (std::vector<double>{3, -1, 2}));
}

TEST(MaxPool, WiderThanTheRowIsTheRowsMaximum) {
  EXPECT_EQ(list(max_pool(matrix({{-3, -1, -2}}), 7).numbers()), (std::vector<double>{-1, -1, -1}));
}

TEST(MaxPool, KeepsRowsApart) {
  EXPECT_EQ(list(max_pool(matrix({{1, 0}, {0, 2}}), 3).numbers()), (std::vector<double>{1, 1, 2, 2}));
}

TEST(MaxPool, OfNoEntriesIsEmpty) {
  EXPECT_EQ(max_pool(Matrix(2, 0), 3).cols(), 0);
  EXPECT_EQ(max_pool(Matrix(0, 4), 3).rows(), 0);
}

TEST(GroupMean, AveragesQueryHeadsThatShareAKvHead) {
  // Heads 0, 1 and heads 2, 3: ((1+3)/2, (2+6)/2), ((0+8)/2, (5+5)/2).
  const Matrix mean = group_mean(matrix({{1, 2}, {3, 6}, {0, 5}, {8, 5}}), 2);
  EXPECT_EQ(mean.rows(), 2);
  EXPECT_EQ(list(mean.numbers()), (std::vector<double>{2, 4, 4, 5}));
}

TEST(GroupMean, OfSingleHeadsChangesNothing) {
  EXPECT_EQ(list(group_mean(matrix({{1, 2}, {3, 6}}), 1).numbers()), (std::vector<double>{1, 2, 3, 6}));
  EXPECT_EQ(group_mean(Matrix(4, 0), 2).rows(), 2) << "no entries";
}

TEST(GroupMean, NamesGroupsThatDoNotFit) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { group_mean(Matrix(3, 1), 2); }),
            "3 query heads cannot be shared out in groups of 2");
  EXPECT_EQ(message_of<ShapeMismatch>([] { group_mean(Matrix(3, 1), 0); }),
            "3 query heads cannot be shared out in groups of 0");
}

// The weights' own bounds, averaged, plus gamma_window for the sum and its quotient; pooling takes the
// largest error within reach; the group mean adds gamma_{group_size}.
TEST(SnapKvOracle, IsMetWithinTheDerivedBounds) {
  for (const int64_t kv_heads : {1, 2, 6}) {
    const RandomLayer layer({6, kv_heads, 5, 3}, 50, 40, 0, static_cast<uint64_t>(kv_heads));
    for (const int64_t window : {1, 7, 40}) {
      const Matrix mean = window_attention(layer.view(), window);
      const oracle::Rows exact = oracle::window_attention(layer.view(), window);
      EXPECT_TRUE(oracle::all_within(mean, exact));
      for (const int64_t width : {1, 3, 7, 101}) {
        const oracle::Rows pooled = oracle::max_pool(exact, width);
        EXPECT_TRUE(oracle::all_within(max_pool(mean, width), pooled));
        EXPECT_TRUE(oracle::all_within(group_mean(max_pool(mean, width), 6 / kv_heads),
                                       oracle::group_mean(pooled, 6 / kv_heads)));
      }
    }
  }
}

RC_GTEST_PROP(MaxPoolProperty, IsTheLargestWithinReachAndNoLessThanTheScore, ()) {
  const std::vector<double> scores = numbers(*test::dyadics(1, 30, 8));
  const int64_t width = 2 * *test::integer(0, 20) + 1;
  Matrix row(1, std::ssize(scores));
  std::ranges::copy(scores, row.row(0).begin());
  const Matrix pooled = max_pool(row, width);
  for (int64_t j = 0; j < row.cols(); ++j) {
    double largest = row(0, j);
    for (int64_t other = 0; other < row.cols(); ++other) {
      if (std::abs(other - j) <= width / 2) largest = std::max(largest, row(0, other));
    }
    RC_ASSERT(pooled(0, j) == largest);
    RC_ASSERT(pooled(0, j) >= row(0, j));
  }
}

}  // namespace
}  // namespace kvbound::reference::snap_kv_test
