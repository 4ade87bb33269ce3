#include <cmath>
#include <deque>
#include <limits>
#include <numbers>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/sim/diff/judge/diagnosis.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::diagnosis_test {
namespace {

constexpr int64_t kDim = 32, kHeads = 5;

// Outputs of five query heads over one cache by a kernel with 16-bit weights, in single precision,
// of which some are wrong.
struct Case {
  explicit Case(int64_t tokens, uint64_t seed = 3)
      : queries(kHeads, kDim), keys(tokens, kDim), values(tokens, kDim), random(seed) {
    for (Matrix* matrix : {&queries, &keys, &values}) {
      for (int64_t j = 0; j < matrix->rows(); ++j) {
        for (double& number : matrix->row(j)) number = random.normal();
      }
    }
    arithmetic = reference::single_precision();
    arithmetic.weights = 0x1p-11;
    errors = reference::attention_errors(queries, keys, values, kScale, {}, arithmetic);
    right = claimed = output(queries, keys, values, kScale);
  }

  static Matrix output(const Matrix& queries, const Matrix& keys, const Matrix& values, double scale) {
    return reference::attention(queries, keys, values, scale).output;
  }
  // With each entry so often.
  void claim_entries(const std::vector<int>& times) {
    std::vector<double> votes;
    Matrix some_keys, some_values;
    std::vector<int64_t> entries;
    for (size_t j = 0; j < times.size(); ++j)
      entries.insert(entries.end(), times[j], static_cast<int64_t>(j));
    some_keys = some_values = Matrix(std::ssize(entries), kDim);
    for (size_t i = 0; i < entries.size(); ++i) {
      std::ranges::copy(keys.row(entries[i]), some_keys.row(static_cast<int64_t>(i)).begin());
      std::ranges::copy(values.row(entries[i]), some_values.row(static_cast<int64_t>(i)).begin());
    }
    claimed = output(queries, some_keys, some_values, kScale);
  }
  std::string found(const std::vector<int64_t>& heads = {0, 1, 2, 3, 4}) const {
    std::deque<reference::OutputFunctionals> functionals;
    std::vector<DifferingOutput> rows;
    for (const int64_t h : heads) {
      functionals.emplace_back(errors, h, values, VectorView(), arithmetic);
      rows.push_back({queries.row(h),
                      keys,
                      values,
                      {},
                      kScale,
                      claimed.row(h),
                      h,
                      right,
                      of_kv_heads.empty() ? MatrixView() : of_kv_heads[h],
                      fit_of(errors, h, functionals.back(), claimed.row(h), Dtype::f32)});
    }
    return diagnosis(rows).value_or("");
  }

  static constexpr double kScale = 0.15;
  Matrix queries, keys, values;
  test::Random random;
  reference::Arithmetic arithmetic;
  reference::AttentionErrors errors;
  Matrix right, claimed;
  std::vector<Matrix> of_kv_heads = {};  // [heads]: DifferingOutput::of_kv_heads, where they are known
};

class Diagnosis : public testing::TestWithParam<int64_t> {
 protected:
  Case given{GetParam()};
  int64_t tokens = GetParam();

  // Each entry once, but for [first, last).
  std::string of_entries(int64_t first, int64_t last, int times) {
    std::vector<int> all(tokens, 1);
    std::fill(all.begin() + first, all.begin() + last, times);
    given.claim_entries(all);
    return given.found();
  }
  void scale_logits(double factor) {
    given.claimed = Case::output(given.queries, given.keys, given.values, factor * Case::kScale);
  }
};

TEST_P(Diagnosis, NamesAFactor) {
  for (int64_t h = 0; h < kHeads; ++h) {
    for (double& number : given.claimed.row(h)) number *= 0.5;
  }
  EXPECT_EQ(given.found(), "outputs are 0.500 of what they should be");
}

TEST_P(Diagnosis, NamesAFactorOfTheLogits) {
  scale_logits(1.05);
  EXPECT_EQ(given.found(), "logits are scaled by 1.050");
  scale_logits(0.4);
  EXPECT_EQ(given.found(), "logits are scaled by 0.400");
  scale_logits(std::numbers::ln2);
  EXPECT_EQ(given.found(), "exponentials are to base 2");
  scale_logits(1 / std::numbers::ln2);
  EXPECT_EQ(given.found(), "logits are scaled by log2 e, but exponentials to base e");
  scale_logits(1 / Case::kScale);
  EXPECT_EQ(given.found(), "logits are not scaled");
  scale_logits(Case::kScale);
  EXPECT_EQ(given.found(), "logits are scaled twice");
}

TEST_P(Diagnosis, NamesSwappedHeads) {
  for (int64_t h = 0; h < kHeads; ++h) {
    std::ranges::copy(given.right.row((h + 2) % kHeads), given.claimed.row(h).begin());
  }
  EXPECT_EQ(given.found(), "query heads 0, 1, 2, 3, 4 hold the outputs of 2, 3, 4, 0, 1");
  EXPECT_EQ(given.found({1, 4}), "query heads 1, 4 hold the outputs of 3, 1");
  EXPECT_EQ(given.found({1}), "query head 1 holds the output of 3");
}

// Two query heads on each of two KV heads; all of them read the other one.
TEST_P(Diagnosis, NamesTheKvHeadsThatAreRead) {
  const Case other(tokens, 8);
  given.claimed = Case::output(given.queries, other.keys, other.values, Case::kScale);
  given.of_kv_heads.assign(kHeads, Matrix(2, kDim));
  for (int64_t h = 0; h < 4; ++h) {
    const int64_t own = h / 2;
    std::ranges::copy(given.right.row(h), given.of_kv_heads[h].row(own).begin());
    std::ranges::copy(given.claimed.row(h), given.of_kv_heads[h].row(1 - own).begin());
  }
  EXPECT_EQ(given.found({1, 2}), "query heads read KV head h mod 2; expected h div 2");
  EXPECT_EQ(given.found({1}), "query head 1 reads KV head 1; expected 0");
  EXPECT_EQ(given.found({0, 1}), "query heads 0, 1 read KV heads 1, 1; expected 0, 0");
  for (double& number : given.claimed.row(2)) number *= 0.5;
  EXPECT_EQ(given.found({1, 2}), "");
  given.of_kv_heads.clear();
  EXPECT_EQ(given.found({1}), "");
}

TEST_P(Diagnosis, NamesMissingEntries) {
  EXPECT_EQ(of_entries(128, 192, 0), "entries 128-191 are missing");
  EXPECT_EQ(of_entries(tokens - 1, tokens, 0), "the last entry is missing");
  EXPECT_EQ(of_entries(tokens - 40, tokens, 0), "the last 40 entries are missing");
  EXPECT_EQ(of_entries(0, 1, 0), "entry 0 is missing");
  EXPECT_EQ(of_entries(0, 16, 0), "entries 0-15 are missing");
}

// Rows of caches of several lengths, as of prompt queries.
TEST_P(Diagnosis, NamesTheLastEntryOfCachesThatGrow) {
  std::deque<Case> cases;
  std::deque<reference::OutputFunctionals> functionals;
  std::vector<DifferingOutput> rows;
  for (int64_t longer = 0; longer < 3; ++longer) {
    Case& one = cases.emplace_back(tokens + longer);
    std::vector<int> all(tokens + longer, 1);
    all.back() = 0;
    one.claim_entries(all);
    functionals.emplace_back(one.errors, 1, one.values, VectorView(), one.arithmetic);
    rows.push_back({one.queries.row(1),
                    one.keys,
                    one.values,
                    {},
                    Case::kScale,
                    one.claimed.row(1),
                    1,
                    one.right,
                    {},
                    fit_of(one.errors, 1, functionals.back(), one.claimed.row(1), Dtype::f32)});
  }
  EXPECT_EQ(diagnosis(rows), "the last entry is missing");
}

TEST_P(Diagnosis, NamesEntriesThatCountTwice) {
  EXPECT_EQ(of_entries(64, 128, 2), "entries 64-127 are counted twice");
  EXPECT_EQ(of_entries(tokens - 1, tokens, 2), "the last entry is counted twice");
}

TEST_P(Diagnosis, NamesPaddingInTheDenominator) {
  for (int64_t h = 0; h < kHeads; ++h) {
    double sum = 0;
    for (int64_t j = 0; j < tokens; ++j) {
      double logit = 0;
      for (int64_t c = 0; c < kDim; ++c) logit += Case::kScale * given.queries(h, c) * given.keys(j, c);
      sum += std::exp(logit);
    }
    for (double& number : given.claimed.row(h)) number *= sum / (sum + 64);
  }
  EXPECT_EQ(given.found(), "64 entries with logit 0 are in the denominator");
}

TEST_P(Diagnosis, NamesRowsOfZerosAndOfNoNumbers) {
  for (int64_t h = 0; h < kHeads; ++h) std::ranges::fill(given.claimed.row(h), 0.0);
  EXPECT_EQ(given.found(), "rows are zero");
  std::ranges::fill(given.claimed.row(2), std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(given.found(), "");
  for (int64_t h = 0; h < kHeads; ++h)
    std::ranges::fill(given.claimed.row(h), std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(given.found(), "rows are not finite");
}

TEST_P(Diagnosis, MakesNothingUpForNoise) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Case noisy(tokens, 50 + seed);
    for (const double share : {0.05, 0.5}) {
      noisy.claimed = noisy.right;
      for (int64_t h = 0; h < kHeads; ++h) {
        for (double& number : noisy.claimed.row(h))
          number += share / std::sqrt(tokens) * noisy.random.normal();
      }
      EXPECT_EQ(noisy.found(), "") << share;
      EXPECT_EQ(noisy.found({0}), "") << share;
    }
  }
}

// A fault has to explain all rows.
TEST_P(Diagnosis, MakesNothingUpForRowsWithFaultsOfTheirOwn) {
  for (int64_t h = 0; h < kHeads; ++h) {
    for (double& number : given.claimed.row(h)) number *= h == 2 ? 0.25 : 0.5;
  }
  EXPECT_EQ(given.found(), "");
}

INSTANTIATE_TEST_SUITE_P(Of, Diagnosis, testing::Values(200, 2048));

}  // namespace
}  // namespace kvbound::sim::diagnosis_test
