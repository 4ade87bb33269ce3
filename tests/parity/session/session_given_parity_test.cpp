// Scores and kept sets that were given, on the device and in the reference.
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/session/session.hpp>
#include <kvbound/reference/core/given_layer.hpp>
#include <kvbound/reference/session/session.hpp>

#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

constexpr LayerShape kShape{4, 2, 16, 12};
constexpr int64_t kTokens = 50, kWindow = 6;

class SessionGivenParity : public DeviceTest {
 protected:
  SessionGivenParity()
      : keys_(rounded<float>(random_tensor(21, kShape.kv_heads, kTokens, kShape.head_dim))),
        values_(rounded<float>(random_tensor(22, kShape.kv_heads, kTokens, kShape.head_dim))),
        queries_(rounded<float>(random_tensor(23, kShape.query_heads, kWindow, kShape.head_dim))),
        projection_(
            rounded<float>(random_tensor(24, 1, kShape.query_heads * kShape.head_dim, kShape.model_dim))) {}

  LayerView view() const { return {kShape, 0.25, keys_, values_, queries_, projection_.slice(0)}; }

  // Expects the reference's kept sets and stage one.
  PromptRecord expect_same(const Policy& policy, const std::vector<int64_t>& budgets) const {
    const PromptRecord expected = reference::make_session()->compress(view(), policy, budgets),
                       record = cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::f32)
                                    ->compress(view(), policy, budgets);
    EXPECT_EQ(record.kept, expected.kept);
    EXPECT_EQ(record.stage_one, expected.stage_one);
    EXPECT_EQ(record.score_positions, expected.score_positions);
    EXPECT_EQ(record.score.rows(), expected.score.rows());
    EXPECT_EQ(record.score.cols(), expected.score.cols());
    return record;
  }

  // Scores of both signs, no two equal in a row; single precision holds them.
  static Matrix scores(int64_t rows, uint64_t seed) {
    Matrix result(rows, kTokens);
    const Tensor random = rounded<float>(random_tensor(seed, 1, rows, kTokens));
    for (int64_t r = 0; r < rows; ++r) std::ranges::copy(random.slice(0).row(r), result.row(r).begin());
    return result;
  }
  static Host host(const std::vector<int64_t>& always_kept, bool with_heads = true) {
    return Given{"a", kWindow,
                 std::make_shared<const GivenLayer>(
                     GivenLayer{.always_kept = always_kept,
                                .score = scores(kShape.kv_heads, 31),
                                .head_score = with_heads ? scores(kShape.query_heads, 32) : Matrix()})};
  }

  const Tensor keys_, values_, queries_, projection_;
};

// None, at one end, at both, and anywhere.
const std::vector<int64_t> kAlwaysKept[] = {{}, {0}, {0, 1, 2, 48, 49}, {3, 4, 20, 37, 49}};

TEST_F(SessionGivenParity, SelectsAsTheReferenceWhateverIsAlwaysKept) {
  Critical none, some, adaptive;
  none.alpha = Decimal{0, 0};
  adaptive.alpha = std::nullopt;
  for (const std::vector<int64_t>& always_kept : kAlwaysKept) {
    for (const Selection& selection :
         {Selection{TopK{}}, Selection{none}, Selection{some}, Selection{adaptive}}) {
      const auto least = std::ssize(always_kept);
      expect_same({host(always_kept), {}, selection, AdaKv{}, {}}, {23, 23});
      expect_same({host(always_kept), {}, selection, {}, {}}, {std::max<int64_t>(least, 1), least + 9});
    }
    expect_same({host(always_kept), {}, {}, {}, {}}, {kTokens, kTokens - 1});
  }
}

TEST_F(SessionGivenParity, SweepsAsTheReferenceWithEntriesInBetweenThatAreAlwaysKept) {
  expect_same({host(kAlwaysKept[3]), {}, ThetaSweep{}, {}, {}}, {9, 17});
}

TEST_F(SessionGivenParity, RecordsTheScoresOfThoseThatAreNotAlwaysKept) {
  const std::vector<int64_t>& always_kept = kAlwaysKept[3];
  const PromptRecord record = expect_same({host(always_kept), {}, Critical{}, {}, {}}, {20, 20});
  const Matrix given = scores(kShape.kv_heads, 31);
  ASSERT_EQ(std::ssize(record.score_positions), kTokens - std::ssize(always_kept));
  for (int64_t g = 0; g < kShape.kv_heads; ++g) {
    for (size_t j = 0; j < record.score_positions.size(); ++j)
      EXPECT_EQ(record.score(g, j), given(g, record.score_positions[j]));
  }
  ASSERT_TRUE(record.stage_two_score);
  EXPECT_EQ(record.stage_two_score->cols(), record.score.cols());
}

TEST_F(SessionGivenParity, MergesFirstAsTheReference) {
  KeepKv merge;
  merge.order = MergeOrder::merge_first;
  for (const std::optional<Decimal> threshold : {std::optional<Decimal>(), std::optional(Decimal{2, 1})}) {
    merge.threshold = threshold;
    for (const size_t set : {0, 3}) expect_same({host(kAlwaysKept[set]), {}, {}, {}, merge}, {30, 17});
  }
}

TEST_F(SessionGivenParity, KeepsWhatWasGiven) {
  const std::vector<std::vector<int64_t>> kept{{0, 7, 49}, {1, 2, 3, 4, 30}};
  const Host host = Given{"a", 32, std::make_shared<const GivenLayer>(GivenLayer{.kept = kept})};
  for (const Merge& merge : {Merge{NoMerge{}}, Merge{D2o{}}})
    EXPECT_EQ(expect_same({host, {}, {}, {}, merge}, {3, 5}).kept, kept);
}

}  // namespace
}  // namespace kvbound::parity
