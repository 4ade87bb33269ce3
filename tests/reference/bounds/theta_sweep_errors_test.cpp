#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/reference/bounds/theta_sweep_errors.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/selection_rules.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::theta_sweep_errors_test {
namespace {

constexpr int64_t kHeads = 3, kTokens = 40, kCandidates = 30;

// Attention weights and norms, as stored in single precision, and the sweep over the first candidates.
struct Sweep {
  explicit Sweep(uint64_t seed)
      : weights(kHeads, kTokens), norms(kHeads, kTokens), weight_errors(weights), norm_errors(weights) {
    test::Random random(seed);
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t j = 0; j < kTokens; ++j) {
        weights(h, j) = std::exp(random.normal());
        norms(h, j) = std::exp(2 * random.normal());
        weight_errors(h, j) = 0x1p-24 * weights(h, j);
        norm_errors(h, j) = 0x1p-24 * norms(h, j);
      }
    }
    candidates.resize(kCandidates);
    std::iota(candidates.begin(), candidates.end(), 0);
  }

  ThetaSweepInput input() const {
    return {weights, norms, weights.view().middle_cols(0, kCandidates), candidates, {}, {}};
  }
  Matrix errors(const Arithmetic& arithmetic = single_precision()) const {
    return theta_sweep_score_errors(input(), weight_errors.view().middle_cols(0, kCandidates), norm_errors,
                                    arithmetic);
  }

  Matrix weights, norms, weight_errors, norm_errors;
  std::vector<int64_t> candidates;
};

// A mixture's score of a candidate, all in single precision.
float single_score(const Sweep& sweep, double lambda, int64_t candidate) {
  float sum = 0;
  for (int64_t h = 0; h < kHeads; ++h) {
    float mean = 0;
    for (int64_t j = 0; j < kTokens; ++j) mean += static_cast<float>(sweep.norms(h, j));
    mean /= static_cast<float>(kTokens);
    const float relative = static_cast<float>(sweep.norms(h, candidate)) / mean,
                factor = lambda == kInfinity ? 1 : static_cast<float>(lambda) + relative;
    sum += static_cast<float>(sweep.weights(h, candidate)) * factor;
  }
  return sum / static_cast<float>(kHeads);
}

TEST(ThetaSweepErrors, HoldInSinglePrecisionAndAreNotMuchLarger) {
  const std::vector<double> lambdas = theta_sweep_lambdas();
  double largest_share = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Sweep sweep(seed);
    const Matrix scores = theta_sweep_scores(sweep.input()), errors = sweep.errors();
    for (size_t i = 0; i < lambdas.size(); ++i) {
      for (int64_t j = 0; j < kCandidates; ++j) {
        const auto row = static_cast<int64_t>(i);
        const double off = std::abs(single_score(sweep, lambdas[i], j) - scores(row, j));
        ASSERT_LE(off, errors(row, j)) << "lambda " << lambdas[i] << ", candidate " << j;
        largest_share = std::max(largest_share, off / errors(row, j));
        ASSERT_LT(errors(row, j), 100 * 0x1p-24 * scores(row, j));
      }
    }
  }
  EXPECT_GT(largest_share, 0.1);
}

TEST(ThetaSweepErrors, GrowWithEachOfTheirCauses) {
  const Sweep sweep(3);
  const Matrix exact = theta_sweep_score_errors(sweep.input(), Matrix(kHeads, kCandidates),
                                                Matrix(kHeads, kTokens), double_precision()),
               rounded = theta_sweep_score_errors(sweep.input(), Matrix(kHeads, kCandidates),
                                                  Matrix(kHeads, kTokens), single_precision());
  Sweep one = sweep;
  one.weight_errors(1, 4) = 0.5;
  EXPECT_LT(exact(5, 4), 1e-12);
  EXPECT_GT(rounded(5, 4), 1e6 * exact(5, 4));
  // mean_h of the error times lambda + N / mean N, for one head.
  const double mean = std::accumulate(sweep.norms.row(1).begin(), sweep.norms.row(1).end(), 0.0) / kTokens,
               factor = theta_sweep_lambdas()[5] + sweep.norms(1, 4) / mean;
  EXPECT_NEAR(one.errors()(5, 4) - sweep.errors()(5, 4), 0.5 * factor / kHeads, 1e-5 * factor);
  EXPECT_EQ(one.errors()(5, 3), sweep.errors()(5, 3)) << "other candidates have their own errors";
  Sweep another = sweep;
  another.norm_errors(1, 39) = 0.5 * mean;
  EXPECT_GT(another.errors()(5, 3), 10 * sweep.errors()(5, 3)) << "through the mean norm";
  EXPECT_EQ(another.errors()(26, 3), sweep.errors()(26, 3)) << "infinite lambda: the norms do not count";
}

TEST(ThetaSweepErrors, AreInfiniteWhereTheMeanNormMayBeZero) {
  Sweep sweep(4);
  std::ranges::fill(sweep.norm_errors.row(2), 1e9);
  EXPECT_EQ(sweep.errors()(0, 0), kInfinity);
  std::ranges::fill(sweep.norms.row(2), 0.0);
  std::ranges::fill(sweep.norm_errors.row(2), 0.0);
  EXPECT_LT(sweep.errors()(0, 0), 1e-4) << "norms that are exactly 0 count as 0";
}

}  // namespace
}  // namespace kvbound::reference::theta_sweep_errors_test
