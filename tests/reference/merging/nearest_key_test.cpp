#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/nearest_key.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"
#include "support/threads.hpp"

namespace kvbound::reference::nearest_key_test {
namespace {

using namespace test;
using oracle::Bounded;

std::vector<int64_t> indices(const std::vector<NearestKey>& keys) {
  std::vector<int64_t> result;
  for (const NearestKey& key : keys) result.push_back(key.index);
  return result;
}

std::vector<double> cosines(const std::vector<NearestKey>& keys) {
  std::vector<double> result;
  for (const NearestKey& key : keys) result.push_back(key.cosine);
  return result;
}

// The results of nearest_keys by calls of nearest_key, from a cache that holds the
// staying keys in reverse order.
std::vector<NearestKey> one_by_one(MatrixView leaving, MatrixView staying) {
  std::vector<NearestKey> result;
  for (int64_t i = 0; i < leaving.rows; ++i) {
    Matrix cache(0, leaving.cols);
    std::vector<int64_t> positions;
    for (int64_t j = staying.rows; j-- > 0;) {
      cache.append_row(staying.row(j));
      positions.push_back(j);
    }
    cache.append_row(leaving.row(i));
    positions.push_back(-1);
    NearestKey nearest = nearest_key(staying.rows, cache, key_norms(cache), positions);
    if (nearest.index >= 0) nearest.index = positions[nearest.index];
    result.push_back(nearest);
  }
  return result;
}

TEST(NearestKeys, AreThoseOfTheSmallestAngle) {
  // (3, 4) with (1, 0), (0, 2), (-3, -4) has cosines 3/5, 4/5, -1; (1, 0) has 1, 0, -3/5.
  const Matrix leaving = matrix({{3, 4}, {1, 0}, {-6, -8}}), staying = matrix({{1, 0}, {0, 2}, {-3, -4}});
  for (const auto& nearest : {nearest_keys(leaving, staying), one_by_one(leaving, staying)}) {
    EXPECT_EQ(indices(nearest), (std::vector<int64_t>{1, 0, 2}));
    EXPECT_NEAR(nearest[0].cosine, 0.8, 1e-15);
    EXPECT_EQ(nearest[1].cosine, 1);
    EXPECT_NEAR(nearest[2].cosine, 1, 1e-15);
  }
}

TEST(NearestKeys, TakeTheSmallerIndexOfEquals) {
  const Matrix leaving = matrix({{1, 2}, {-1, 0}}),
               staying = matrix({{0, -1}, {1, 3}, {0, 1}, {1, 3}, {2, 6}});
  EXPECT_EQ(indices(nearest_keys(leaving, staying)), (std::vector<int64_t>{1, 0}))
      << "(-1, 0) is at right angles to 0 and 2";
  EXPECT_EQ(indices(one_by_one(leaving, staying)), (std::vector<int64_t>{1, 0}));
}

TEST(NearestKeys, TakeTheSmallerIndexOfEqualsInOtherBlocks) {
  // The same keys repeated at all places within blocks and across them.
  const Matrix few = Random(5).matrix(37, 16);
  Matrix many(0, 16);
  for (int64_t j = 0; j < 1000; ++j) many.append_row(few.row(j % 37));
  const std::vector<NearestKey> nearest = nearest_keys(many, many);
  for (int64_t i = 0; i < 1000; ++i) {
    const NearestKey& key = nearest[i];
    EXPECT_EQ(key.index, i % 37) << i;
    EXPECT_EQ(key.cosine, nearest[i % 37].cosine) << i;
  }
}

TEST(NearestKeys, AreAtRightAnglesToZero) {
  const Matrix leaving = matrix({{0, 0}, {-1, 0}, {1, 0}}), staying = matrix({{1, 0}, {0, 0}, {1, 1}});
  for (const auto& nearest : {nearest_keys(leaving, staying), one_by_one(leaving, staying)}) {
    EXPECT_EQ(indices(nearest), (std::vector<int64_t>{0, 1, 0}));
    EXPECT_EQ(cosines(nearest), (std::vector<double>{0, 0, 1}));
  }
}

TEST(NearestKeys, AreNoneWhereNobodyStays) {
  const std::vector<NearestKey> nearest = nearest_keys(matrix({{1, 2}, {3, 4}}), Matrix(0, 2));
  EXPECT_EQ(indices(nearest), (std::vector<int64_t>{-1, -1}));
  EXPECT_TRUE(nearest_keys(Matrix(0, 2), matrix({{1, 2}})).empty());
  EXPECT_EQ(nearest_key(0, matrix({{1, 2}}), std::vector{1.0}, std::vector<int64_t>{7}).index, -1);
}

TEST(NearestKeys, DoNotDependOnKeysSizes) {
  const Matrix leaving = Random(6).matrix(20, 24), staying = Random(8).matrix(30, 24);
  const std::vector<NearestKey> expected = nearest_keys(leaving, staying);
  for (const int exponent : {-1040, -700, -420, 420, 700, 1000}) {
    const auto times = [exponent](const Matrix& keys) {
      Matrix scaled = keys;
      for (int64_t i = 0; i < keys.rows(); ++i) {
        for (double& x : scaled.row(i)) x = std::scalbn(x, exponent);
      }
      return scaled;
    };
    const Matrix little = times(leaving), few = times(staying);
    EXPECT_EQ(indices(nearest_keys(little, staying)), indices(expected)) << exponent;
    EXPECT_EQ(indices(nearest_keys(little, few)), indices(expected)) << exponent;
    EXPECT_EQ(indices(one_by_one(little, few)), indices(expected)) << exponent;
    EXPECT_EQ(indices(one_by_one(leaving, few)), indices(expected)) << exponent;
    if (exponent == -1040) continue;  // at this size keys become subnormal and lose bits
    EXPECT_EQ(cosines(nearest_keys(little, few)), cosines(expected)) << exponent;
  }
}

TEST(NearestKeys, HoldForNormsWhoseSquaresAreNoNumbers) {
  for (const double size : {1e-200, 1e200}) {
    const Matrix leaving = matrix({{3 * size, 4 * size}}), staying = matrix({{size, 0}, {0, 2 * size}});
    for (const auto& nearest : {nearest_keys(leaving, staying), one_by_one(leaving, staying)}) {
      EXPECT_EQ(nearest[0].index, 1);
      EXPECT_NEAR(nearest[0].cosine, 0.8, 1e-15);
    }
    EXPECT_NEAR(key_norms(leaving)[0] / size, 5, 1e-14);
  }
  EXPECT_EQ(key_norms(matrix({{3, -4}, {0, 0}})), (std::vector<double>{5, 0}));
  EXPECT_TRUE(key_norms(Matrix(0, 2)).empty());
}

TEST(NearestKeys, HaveNoCosineBeyondOne) {
  // Every key with itself and with its opposite: rounding takes some of these cosines past 1.
  const Matrix keys = Random(9).matrix(300, 7);
  Matrix both = keys;
  for (int64_t i = 0; i < 300; ++i) {
    std::vector<double> opposite(keys.row(i).begin(), keys.row(i).end());
    for (double& x : opposite) x = -x;
    both.append_row(opposite);
  }
  for (const auto& nearest : {nearest_keys(keys, both), one_by_one(keys, both)}) {
    for (size_t i = 0; i < nearest.size(); ++i) {
      EXPECT_EQ(nearest[i].index, static_cast<int64_t>(i));
      EXPECT_LE(nearest[i].cosine, 1);
      EXPECT_NEAR(nearest[i].cosine, 1, 1e-14);
    }
  }
  for (int64_t i = 0; i < 300; ++i) {
    const double cosine =
        nearest_keys(keys.view().middle_rows(i, 1), both.view().middle_rows(300 + i, 1))[0].cosine;
    EXPECT_GE(cosine, -1);
    EXPECT_NEAR(cosine, -1, 1e-14);
  }
}

oracle::Row direction(VectorView key) {
  const oracle::Row numbers = oracle::exactly(key);
  const Bounded norm = oracle::sqrt(oracle::dot(numbers, numbers));
  oracle::Row result;
  for (const Bounded& x : numbers) result.push_back(x / norm);
  return result;
}

TEST(NearestKeysOracle, AreTheNearestWithinTheirBounds) {
  // Ragged blocks; among 300 staying keys of dimension 2 and 3 many nearly tie.
  for (const int64_t head_dim : {1, 2, 3, 8, 65}) {
    const Matrix leaving = Random(21).matrix(33, head_dim), staying = Random(22).matrix(300, head_dim);
    const std::vector<NearestKey> all = nearest_keys(leaving, staying), single = one_by_one(leaving, staying);
    std::vector<oracle::Row> directions;
    for (int64_t j = 0; j < 300; ++j) directions.push_back(direction(staying.row(j)));
    for (int64_t i = 0; i < 33; ++i) {
      const oracle::Row own = direction(leaving.row(i));
      oracle::Row expected;
      for (const oracle::Row& other : directions) expected.push_back(oracle::dot(own, other));
      for (const NearestKey& nearest : {all[i], single[i]}) {
        const Bounded& found = expected[nearest.index];
        EXPECT_TRUE(oracle::within(nearest.cosine, found)) << head_dim << " " << i;
        for (const Bounded& other : expected) {
          EXPECT_LE(other.value - other.bound, found.value + found.bound) << head_dim << " " << i;
        }
      }
    }
  }
}

TEST(NearestKeys, AreTheSameForAnyNumberOfThreads) {
  const Matrix leaving = Random(31).matrix(1100, 32), staying = Random(32).matrix(700, 32);
  const auto nearest = [&] { return nearest_keys(leaving, staying); };
  const std::vector<NearestKey> one = with_threads(1, nearest);
  for (const int threads : {2, 3, 7}) {
    const std::vector<NearestKey> more = with_threads(threads, nearest);
    EXPECT_EQ(indices(more), indices(one));
    EXPECT_EQ(cosines(more), cosines(one));
  }
}

TEST(NearestBetterKeys, AreTheNearestOfStrictlyHigherScore) {
  // 0 and 2 have the highest score. Of the entries better than 1 the nearest is at 45 degrees; all
  // others are better than 3.
  const Matrix keys = matrix({{1, 0}, {0, 1}, {1, 1}, {0, 2}});
  const std::vector<NearestKey> nearest = nearest_better_keys(keys, std::vector<double>{5, 1, 5, 0});
  EXPECT_EQ(indices(nearest), (std::vector<int64_t>{-1, 2, -1, 1}));
  EXPECT_NEAR(nearest[1].cosine, std::sqrt(0.5), 1e-15);
  EXPECT_EQ(nearest[3].cosine, 1);
  EXPECT_EQ(indices(nearest_better_keys(matrix({{1, 0}, {-1, 0}, {-2, 0}}), std::vector<double>{0, 1, 1})),
            (std::vector<int64_t>{1, -1, -1}))
      << "both at 180 degrees: the smaller index";
  EXPECT_TRUE(nearest_better_keys(Matrix(0, 2), {}).empty());
  EXPECT_EQ(message_of<ShapeMismatch>([&] { nearest_better_keys(keys, std::vector<double>{1}); }),
            "scores is 1 but rows of keys is 4");
}

TEST(NearestBetterKeys, AreTheNearestOfThoseKeysAlone) {
  // More than one block of keys, some with equal scores, every third one a duplicate.
  Random random(41);
  Matrix keys = random.matrix(400, 6);
  for (int64_t i = 0; i < 400; i += 3) std::ranges::copy(keys.row(i / 3), keys.row(399 - i).begin());
  std::vector<double> scores;
  for (int64_t i = 0; i < 400; ++i) scores.push_back(static_cast<double>(random.index(60)));
  const std::vector<NearestKey> nearest = nearest_better_keys(keys, scores);
  for (int64_t i = 0; i < 400; ++i) {
    Matrix better(0, 6);
    std::vector<int64_t> positions;
    for (int64_t j = 0; j < 400; ++j) {
      if (scores[j] <= scores[i]) continue;
      better.append_row(keys.row(j));
      positions.push_back(j);
    }
    const NearestKey expected =
        better.rows() == 0 ? NearestKey{} : nearest_keys(keys.view().middle_rows(i, 1), better)[0];
    const NearestKey& found = nearest[i];
    EXPECT_EQ(found.index, expected.index < 0 ? -1 : positions[expected.index]) << i;
    EXPECT_EQ(found.cosine, expected.cosine) << i;
  }
}

TEST(NearestKey, IsNeverItself) {
  const Matrix keys = matrix({{1, 0}, {0, 1}, {1, 1}});
  const NearestKey nearest = nearest_key(2, keys, key_norms(keys), std::vector<int64_t>{9, 4, 6});
  EXPECT_EQ(nearest.index, 1) << "0 is as near, but its position is larger";
  EXPECT_NEAR(nearest.cosine, std::sqrt(0.5), 1e-15);
}

TEST(NearestKeys, NameWhatDoesNotFit) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { nearest_keys(Matrix(1, 2), Matrix(1, 3)); }),
            "columns of leaving is 2 but columns of staying is 3");
  EXPECT_EQ(message_of<NonFinite>([] {
              nearest_keys(matrix({{1, NAN}}), matrix({{1, 2}}));
            }),
            "leaving[1] is nan");
  EXPECT_EQ(message_of<NonFinite>([] {
              nearest_keys(matrix({{1, 2}}), matrix({{-INFINITY, 2}}));
            }),
            "staying[0] is -inf");
  EXPECT_EQ(message_of<NonFinite>([] { key_norms(matrix({{1, 2}, {3, NAN}})); }), "vector[1] is nan");
  EXPECT_EQ(message_of<ShapeMismatch>([] {
              nearest_key(0, Matrix(2, 2), std::vector<double>{1}, std::vector<int64_t>{0, 1});
            }),
            "norms is 1 but rows of keys is 2");
}

// Blocks of keys are checked by several threads; which of them finds something first does not matter.
TEST(NearestKeys, NameTheFirstOfSeveralFaults) {
  Matrix keys(4000, 3);
  keys(255, 1) = NAN;  // the last row of a block of 256; other blocks fail in their first row
  for (int64_t later = 256; later < 4000; later += 256) keys(later, 2) = INFINITY;
  for (int repeat = 0; repeat < 50; ++repeat) {
    EXPECT_EQ(message_of<NonFinite>([&] { nearest_keys(keys, Matrix(1, 3)); }), "leaving[1] is nan");
  }
}

}  // namespace
}  // namespace kvbound::reference::nearest_key_test
