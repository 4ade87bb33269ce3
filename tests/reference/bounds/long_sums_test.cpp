#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/long_sums.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::long_sums_test {
namespace {

using namespace rounding;

// The largest sum of |sums of runs| over all divisions into at most `runs` runs, by trying them all.
double largest_of_all(const std::vector<double>& terms, size_t first, int64_t runs) {
  if (first == terms.size()) return 0;
  double best = 0, sum = 0;
  for (size_t last = first; last < terms.size(); ++last) {
    sum += terms[last];
    if (runs == 1 && last + 1 < terms.size()) continue;
    best = std::max(best, std::abs(sum) + largest_of_all(terms, last + 1, runs - 1));
  }
  return best;
}

TEST(LongSums, OfRunsAreNeverBelowTheWorstDivisionAndCloseToIt) {
  test::Random random(1);
  double slack = 0, cases = 0;
  for (int trial = 0; trial < 60; ++trial) {
    Matrix terms(9, 3);
    for (int64_t j = 0; j < terms.rows(); ++j) {
      for (double& term : terms.row(j)) term = random.normal();
    }
    for (const int64_t runs : {1, 2, 3, 5, 9}) {
      const std::vector<double> bounds = largest_runs(terms, runs);
      for (int64_t c = 0; c < 3; ++c) {
        std::vector<double> column;
        for (int64_t j = 0; j < terms.rows(); ++j) column.push_back(terms(j, c));
        const double exact = largest_of_all(column, 0, runs);
        ASSERT_GE(bounds[c], exact * (1 - 1e-12)) << runs;
        ASSERT_LE(bounds[c], 2.5 * exact) << runs;
        slack += bounds[c] / exact;
        ++cases;
      }
    }
  }
  EXPECT_LT(slack / cases, 1.1);
}

TEST(LongSums, OfRunsOfARandomWalkAreFarBelowTheirAbsoluteValues) {
  test::Random random(2);
  constexpr int64_t kTerms = 4096, kRuns = 8;
  Matrix terms(kTerms, 1);
  double all = 0, equal = 0, sum = 0;
  for (int64_t j = 0; j < kTerms; ++j) {
    terms(j, 0) = random.normal();
    all += std::abs(terms(j, 0));
    sum += terms(j, 0);
    if ((j + 1) % (kTerms / kRuns) == 0) equal += std::abs(std::exchange(sum, 0));
  }
  const double bound = largest_runs(terms, kRuns).front();
  EXPECT_GE(bound, equal);
  EXPECT_LT(bound, 4 * equal);
  EXPECT_LT(bound, 0.2 * all);
  EXPECT_NEAR(largest_runs(terms, kTerms).front(), all, 1e-9 * all);
}

// The number of times that a running maximum changes, over a subset, forwards or backwards.
int64_t changes(const std::vector<double>& logits) {
  int64_t count = 0;
  double most = -std::numeric_limits<double>::infinity();
  for (const double logit : logits) {
    if (logit <= most) continue;
    most = logit;
    ++count;
  }
  return count;
}

TEST(LongSums, RescaleNoMoreOftenThanAnySubsetCan) {
  test::Random random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> logits(12);
    for (double& logit : logits) logit = std::round(3 * random.normal());  // ties among them
    int64_t most = 0;
    for (uint32_t subset = 1; subset < 1u << logits.size(); ++subset) {
      std::vector<double> some;
      for (size_t j = 0; j < logits.size(); ++j) {
        if (subset >> j & 1) some.push_back(logits[j]);
      }
      most = std::max(most, changes(some));
      std::ranges::reverse(some);
      most = std::max(most, changes(some));
    }
    ASSERT_EQ(most_rescalings(logits), static_cast<double>(most));
  }
}

TEST(LongSums, RescaleLessOftenInOrder) {
  test::Random random(4);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> logits(20);
    for (double& logit : logits) logit = std::round(3 * random.normal());
    int64_t most = 0;
    for (int side = 0; side < 2; ++side) {
      for (size_t first = 0; first < logits.size(); ++first) {
        most = std::max(most, changes({logits.begin() + static_cast<std::ptrdiff_t>(first), logits.end()}));
      }
      std::ranges::reverse(logits);
    }
    ASSERT_EQ(most_rescalings_in_order(logits), static_cast<double>(most));
  }
}

TEST(LongSums, AreThoseOfManyTokensOrOfADeclaredTile) {
  Arithmetic arithmetic = tensor_core_precision();
  EXPECT_FALSE(is_long(arithmetic, 8192));
  EXPECT_TRUE(is_long(arithmetic, 8193));
  arithmetic.tile = kAnyTile;
  EXPECT_FALSE(is_long(arithmetic, 1 << 20));
  arithmetic.tile = 128;
  EXPECT_TRUE(is_long(arithmetic, 100));
  arithmetic.accumulation_depth = 5;
  EXPECT_FALSE(is_long(arithmetic, 1 << 20)) << "a kernel that declares its own";
  EXPECT_FALSE(is_long(double_precision(), 1 << 20)) << "any order serves";
  EXPECT_EQ(most_parts(tensor_core_precision(), 4), 4);
  EXPECT_EQ(most_parts(tensor_core_precision(), 1000), 8);
  EXPECT_EQ(most_parts(tensor_core_precision(), 1 << 20), 4096);
  arithmetic.splits = 3;
  EXPECT_EQ(most_parts(arithmetic, 1 << 20), 3);
}

// 18 truncations of 2^-23 for every 16 tokens, in all parts together, however many there are.
TEST(LongSums, CountTheStepsOfAllParts) {
  constexpr int64_t kTokens = 1 << 20;
  for (const int64_t splits : {0, 1, 2, 8, 64}) {
    Arithmetic arithmetic = tensor_core_precision();
    arithmetic.splits = splits;
    EXPECT_GE(LongSums(kTokens, 0, arithmetic).of_weights(), kTokens / 16 * 18 * 0x1p-23) << splits;
    const double none = LongSums(kTokens, 0, arithmetic).of_values(std::vector{1.0}, std::vector{1.0})[0],
                 some = LongSums(kTokens, 100, arithmetic).of_values(std::vector{1.0}, std::vector{1.0})[0];
    EXPECT_GE(some - none, static_cast<double>(std::max<int64_t>(splits, 1)) * 200 * 0x1p-24) << splits;
  }
  Arithmetic tiled = tensor_core_precision();
  tiled.tile = 128;
  tiled.splits = 8;
  const double share = LongSums(kTokens, 20, tiled).of_values(std::vector{1.0}, std::vector{0.0})[0];
  EXPECT_EQ(share, 0) << "of no terms nothing is lost";
  EXPECT_NEAR(LongSums(kTokens, 20, tiled).of_weights(), (8192 + 8 + 160) * 0x1p-24 + 129 * 0x1p-22, 5e-6);
}

// Attention of one query in single precision, with running maxima and rescaled sums.
struct Partial {
  float most = -INFINITY, sum = 0;
  std::vector<float> output;

  void add(float logit, VectorView value) {
    output.resize(value.size());
    const float larger = std::max(most, logit), scale = std::exp(most - larger),
                weight = std::exp(logit - larger);
    sum = sum * scale + weight;
    for (size_t c = 0; c < value.size(); ++c)
      output[c] = output[c] * scale + weight * static_cast<float>(value[c]);
    most = larger;
  }
  void add(const Partial& other) {
    if (other.sum == 0) return;
    output.resize(other.output.size());
    const float larger = std::max(most, other.most), scale = std::exp(most - larger),
                others = std::exp(other.most - larger);
    sum = sum * scale + other.sum * others;
    for (size_t c = 0; c < output.size(); ++c) output[c] = output[c] * scale + other.output[c] * others;
    most = larger;
  }
};

// Tokens that one thread adds up, of n.
using Lanes = std::vector<std::vector<int64_t>>;
Lanes in_order(int64_t n) {
  Lanes lanes(1, std::vector<int64_t>(n));
  std::iota(lanes[0].begin(), lanes[0].end(), 0);
  return lanes;
}
Lanes backwards(int64_t n) {
  Lanes lanes = in_order(n);
  std::ranges::reverse(lanes[0]);
  return lanes;
}
Lanes strided(int64_t n, int64_t count) {
  Lanes lanes(count);
  for (int64_t j = 0; j < n; ++j) lanes[j % count].push_back(j);
  return lanes;
}
Lanes split(int64_t n, int64_t count) {
  Lanes lanes(count);
  for (int64_t j = 0; j < n; ++j) lanes[j * count / n].push_back(j);
  return lanes;
}

TEST(LongSums, HoldForWhatKernelsDoInSinglePrecisionAndTellHalfFromWhole) {
  constexpr int64_t kTokens = 12'000, kDim = 8;
  test::Random random(5);
  Matrix query(1, kDim), keys(kTokens, kDim), values(kTokens, kDim);
  for (Matrix* matrix : {&query, &keys, &values}) {
    for (int64_t j = 0; j < matrix->rows(); ++j) {
      for (double& number : matrix->row(j)) number = static_cast<float>(random.normal());
    }
  }
  const Matrix exact = attention(query, keys, values, 0.35).output;
  const AttentionErrors errors = attention_errors(query, keys, values, 0.35, {}, tensor_core_precision());
  const Matrix logits = attention_logits(query, keys, 0.35);
  double sizes = 0;
  for (int64_t c = 0; c < kDim; ++c) {
    EXPECT_LT(errors.output(0, c), 5e-3);
    sizes += std::abs(exact(0, c));
  }
  EXPECT_GT(sizes / kDim, 5e-3);
  for (int64_t c = 0; c < kDim; ++c) {
    double absolute = 0;
    for (int64_t j = 0; j < kTokens; ++j)
      absolute += std::exp(errors.log_weights(0, j)) * std::abs(values(j, c));
    EXPECT_GT(errors.own(0, c), 8192 * 0x1p-24 * absolute) << "a term may pass through so many additions";
    EXPECT_LT(errors.own(0, c), 2 * 8192 * 0x1p-24 * absolute);
  }
  for (const Lanes& lanes : {in_order(kTokens), backwards(kTokens), strided(kTokens, 8),
                             strided(kTokens, 128), split(kTokens, 4), split(kTokens, 40)}) {
    Partial all;
    for (const std::vector<int64_t>& lane : lanes) {
      Partial part;
      for (const int64_t j : lane) part.add(static_cast<float>(logits(0, j)), values.row(j));
      all.add(part);
    }
    for (int64_t c = 0; c < kDim; ++c) {
      EXPECT_LE(std::abs(all.output[c] / all.sum - exact(0, c)), errors.output(0, c));
    }
  }
}

// One query of one number; all weights but the last are nearly equal, so that additions err the same way.
struct EqualWeights {
  Matrix projection{1, 1};
  Tensor query{1, 1, 1}, keys, values;
  LayerView layer;

  explicit EqualWeights(int64_t tokens) : keys(1, tokens, 1), values(1, tokens, 1) {
    query.numbers()[0] = 1;
    for (int64_t j = 0; j + 1 < tokens; ++j) keys.numbers()[j] = std::log(0.9998F);
    layer = {{1, 1, 1, 1}, 1, keys, values, query, projection};
  }
  // Of the last query, which sees all tokens.
  double largest_error() const {
    const Matrix errors = window_attention_errors(layer, 1, tensor_core_precision());
    return max_abs(errors.row(0)) * static_cast<double>(keys.numbers().size());
  }
};

TEST(LongSums, HoldForScoresOfManyTokensInSinglePrecision) {
  constexpr int64_t kTokens = 12'000;
  const EqualWeights weights(kTokens);
  const Matrix exact = window_attention(weights.layer, 1);
  const Matrix errors = window_attention_errors(weights.layer, 1, tensor_core_precision());
  double most = 0;
  for (const Lanes& lanes : {in_order(kTokens), backwards(kTokens), strided(kTokens, 8), split(kTokens, 4)}) {
    Partial all;
    for (const std::vector<int64_t>& lane : lanes) {
      Partial part;
      for (const int64_t j : lane) part.add(static_cast<float>(weights.keys.numbers()[j]), VectorView());
      all.add(part);
    }
    const float log_sum_exp = all.most + std::log(all.sum);
    for (int64_t j = 0; j < kTokens; ++j) {
      const float weight = std::exp(static_cast<float>(weights.keys.numbers()[j]) - log_sum_exp);
      const double error = std::abs(weight - exact(0, j));
      EXPECT_LE(error, errors(0, j)) << j;
      most = std::max(most, error * static_cast<double>(kTokens));
    }
  }
  EXPECT_GT(most, 5e-5) << "the additions do not err";
}

TEST(LongSums, LeaveScoresOfVeryManyTokensABound) {
  EXPECT_LT(EqualWeights(1 << 17).largest_error(), 0.025);
  EXPECT_LT(EqualWeights(1 << 20).largest_error(), 0.2);
}

}  // namespace
}  // namespace kvbound::reference::long_sums_test
