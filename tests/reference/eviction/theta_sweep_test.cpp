#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/eviction/theta_sweep.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"
#include "support/sweep_oracle.hpp"

namespace kvbound::reference::theta_sweep_test {
namespace {

using oracle::Bounded;
using oracle::Real;
using test::matrix;
using test::message_of;
using test::Random;
using Positions = std::vector<int64_t>;

// One KV head's weights and norms; every position but the last is a candidate.
struct Head {
  Head(Matrix weights_, Matrix norms_)
      : weights(std::move(weights_)), norms(std::move(norms_)), always{weights.cols() - 1} {
    for (int64_t i = 0; i + 1 < weights.cols(); ++i) candidates.push_back(i);
  }
  ThetaSweepInput input(std::vector<Positions> rivals = {}) const {
    const auto scores = weights.view().middle_cols(0, std::ssize(candidates));
    return {weights, norms, scores, candidates, always, std::move(rivals)};
  }

  Matrix weights, norms;  // [group_size, tokens]
  Positions candidates, always;
};

// sum_h theta_h of the selected candidates and the always-kept entries in 50 digits, with the error bound of
// evaluating it in double precision.
Bounded total_bound(const Head& head, const Positions& selected) {
  Positions kept = selected;
  kept.insert(kept.end(), head.always.begin(), head.always.end());
  std::ranges::sort(kept);
  oracle::Row bounds;
  for (int64_t h = 0; h < head.weights.rows(); ++h) {
    bounds.push_back(oracle::perturbation_bound(oracle::exactly(head.weights.row(h)),
                                                oracle::exactly(head.norms.row(h)), kept));
  }
  return sum(bounds);
}

TEST(ThetaSweep, KeepsTheMassWhereEvictionIsDear) {
  // Kept {0, 3}: Sigma 1/2, theta = 0.3*2 + 0.2*8 + (0.5/0.5)(0.4 + 0.1) = 2.7.
  // Kept {1, 3}: 0.4*1 + 0.2*8 + (0.6/0.4)(0.6 + 0.1) = 3.05.
  // Kept {2, 3}: 0.4*1 + 0.3*2 + (0.7/0.3)(1.6 + 0.1) = 4.97.
  const Head head(matrix({{0.4, 0.3, 0.2, 0.1}}), matrix({{1, 2, 8, 1}}));
  EXPECT_EQ(select_theta_sweep(head.input(), 1), Positions{0});
}

TEST(ThetaSweep, KeepsTheNormWhereMassIsCheap) {
  // Kept {0, 3}: 8/16 + 1/16 + (1/7)(1/8 + 3/4) = 0.6875.  Kept {1, 3}: 1/8 + 1/16 + (3/13)(1/2 + 3/4) =
  // 0.476. Kept {2, 3}: 1/8 + 8/16 + (3/13)(1/16 + 3/4) = 0.8125.
  const Head head(matrix({{0.125, 0.0625, 0.0625, 0.75}}), matrix({{1, 8, 1, 1}}));
  EXPECT_EQ(select_theta_sweep(head.input(), 1), Positions{1});
}

TEST(ThetaSweep, TakesNothingAndEverything) {
  const Head head(matrix({{0.4, 0.3, 0.2, 0.1}}), matrix({{1, 2, 8, 1}}));
  EXPECT_EQ(select_theta_sweep(head.input(), 0), Positions{});
  EXPECT_EQ(select_theta_sweep(head.input(), 3), (Positions{0, 1, 2}));
  const Head window_only(matrix({{1}}), matrix({{2}}));
  EXPECT_EQ(select_theta_sweep(window_only.input(), 0), Positions{});
}

TEST(ThetaSweep, TakesTheFirstOfEqualSelections) {
  const Head equal(matrix({{0.25, 0.25, 0.25, 0.25}}), matrix({{1, 1, 1, 1}}));
  EXPECT_EQ(select_theta_sweep(equal.input({{2}}), 1), Positions{0}) << "among ties the smaller index";
  // With norms of 0 no selection costs anything: lambda = 0 comes first, and all its scores are 0.
  const Head free(matrix({{0.1, 0.2, 0.6, 0.1}}), matrix({{0, 0, 0, 0}}));
  EXPECT_EQ(select_theta_sweep(free.input(), 1), Positions{0});
}

TEST(ThetaSweep, EndsWithAttentionAlone) {
  // Kept mass is below 1/2, so theta grows with the kept norms, and 0 is better than 1: both have about 0.3,
  // but norms 1 and 2. The mean norm is 7/6, so even at lambda = 10^3 entry 1 leads: 0.2999
  // (1000 + 12/7) > 0.3 (1000 + 6/7).
  const Head head(matrix({{0.3, 0.2999, 0.13, 0.13, 0.13, 0.0101}}), matrix({{1, 2, 1, 1, 1, 1}}));
  EXPECT_EQ(select_theta_sweep(head.input(), 1), Positions{0});
}

TEST(ThetaSweep, TakesARivalThatIsBetter) {
  // The sweep's own scores rank 0 first for every lambda; by the attention weights 1 is better.
  Head head(matrix({{0.0625, 0.5, 0.4375}}), matrix({{1, 1, 1}}));
  const Matrix misled = matrix({{1, 0}});
  ThetaSweepInput input = head.input({{1}});
  input.head_scores = misled;
  EXPECT_EQ(select_theta_sweep(input, 1), Positions{1});
  input.rivals.clear();
  EXPECT_EQ(select_theta_sweep(input, 1), Positions{0});
}

TEST(ThetaSweep, CountsASelectionWithoutMassAsTheWorst) {
  // In head 1 position 0 has no weight, and nothing is always kept: theta is finite only if 1 is kept.
  const Matrix weights = matrix({{0.9, 0.1}, {0, 1}}), norms = matrix({{1, 1}, {1, 1}});
  const Matrix misled = matrix({{1, 0}, {1, 0}});
  const Positions candidates{0, 1};
  EXPECT_EQ(select_theta_sweep({weights, norms, misled, candidates, {}, {{1}}}, 1), Positions{1});
  EXPECT_EQ(select_theta_sweep({weights, norms, misled, candidates, {}, {}}, 1), Positions{0})
      << "there is no other";
}

TEST(ThetaSweep, NamesWhatItRefuses) {
  const Head head(matrix({{0.4, 0.3, 0.3}}), matrix({{1, 1, 1}}));
  const Matrix wide = matrix({{1, 1, 1, 1}});
  ThetaSweepInput input = head.input();
  input.head_scores = wide;
  EXPECT_EQ(message_of<ShapeMismatch>([&] { select_theta_sweep(input, 1); }),
            "candidates is 2 but columns of head_scores is 4");
  input = head.input();
  input.projected_value_norms = wide;
  EXPECT_EQ(message_of<ShapeMismatch>([&] { select_theta_sweep(input, 1); }),
            "columns of attention_weights is 3 but columns of projected_value_norms is 4");
  EXPECT_EQ(message_of<ShapeMismatch>([&] { select_theta_sweep(head.input(), 3); }),
            "cannot select 3 of 2 entries");
  const Matrix nan = matrix({{0, std::numeric_limits<double>::quiet_NaN()}});
  input = head.input();
  input.head_scores = nan;
  EXPECT_EQ(message_of<NonFinite>([&] { select_theta_sweep(input, 1); }), "scores[1] is NaN");
}

Head random_head(Random& random, int64_t group_size, int64_t tokens) {
  Matrix weights(group_size, tokens), norms(group_size, tokens);
  for (int64_t h = 0; h < group_size; ++h) {
    double total = 0;
    for (double& weight : weights.row(h)) total += weight = std::exp(1.5 * random.normal());
    for (double& weight : weights.row(h)) weight /= total;
    for (double& norm : norms.row(h)) norm = std::exp(random.normal());
  }
  return {std::move(weights), std::move(norms)};
}

// Selections are compared by computed bounds, so the guarantee holds up to the error
// bounds of two evaluations.
TEST(ThetaSweepOracle, IsNeverWorseThanItsRivals) {
  int64_t better_than_all = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Random random(seed);
    const Head head = random_head(random, 1 + random.index(4), 4 + random.index(20));
    const auto candidates = std::ssize(head.candidates);
    const int64_t k = random.index(candidates + 1);
    const Matrix score = group_mean(head.weights, head.weights.rows());
    const auto stage_two = stage_two_scores(head.weights, head.norms, 1e-4, GqaProduct::mean_of_products);
    const auto row = score.row(0).first(candidates);
    const auto two = VectorView(stage_two).first(candidates);
    const std::vector<Positions> rivals{select_top(row, k), select_critical(row, two, k, k / 2).selected,
                                        random.subset(candidates, k)};
    const Positions selected = select_theta_sweep(head.input(rivals), k);
    ASSERT_EQ(std::ssize(selected), k);
    const Bounded bound = total_bound(head, selected);
    bool better = true;
    for (const Positions& rival : rivals) {
      const Bounded rival_bound = total_bound(head, rival);
      EXPECT_LE(bound.value - bound.bound, rival_bound.value + rival_bound.bound) << seed;
      better = better && bound.value + bound.bound < rival_bound.value - rival_bound.bound;
    }
    better_than_all += better;
  }
  EXPECT_GT(better_than_all, 0) << "the sweep adds something to its rivals";
}

// Norms span many orders of magnitude, and their common scale must not matter.
TEST(ThetaSweepOracle, TakesTheLeastBoundOfAllItsSelections) {
  std::vector<int64_t> times_best(27);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(1000 + seed);
    Head head = random_head(random, 1 + random.index(3), 25);
    for (int64_t h = 0; h < head.norms.rows(); ++h) {
      const double size = std::ldexp(1, static_cast<int>(random.index(41)) - 20);
      for (double& norm : head.norms.row(h)) norm = size * norm * norm * norm;
    }
    const int64_t k = 3 + random.index(18);
    const Positions selected = select_theta_sweep(head.input(), k);
    const Bounded bound = total_bound(head, selected);
    const std::vector<Positions> choices =
        oracle::swept_selections(oracle::exactly(head.weights.view()), oracle::exactly(head.norms.view()),
                                 std::ssize(head.candidates), k);
    const auto chosen = std::ranges::find(choices, selected);
    ASSERT_NE(chosen, choices.end()) << "seed " << seed;
    ++times_best[chosen - choices.begin()];
    for (const Positions& choice : choices) {
      const Bounded other = total_bound(head, choice);
      EXPECT_LE(bound.value - bound.bound, other.value + other.bound) << "seed " << seed;
    }
  }
  EXPECT_GT(std::ranges::count_if(times_best, [](int64_t count) { return count > 0; }), 5)
      << "a sweep whose points are not all needed";
}

// The best selection may lie off the hull that the sweep follows; the test's report says how often.
TEST(ThetaSweepOracle, FindsNearlyAlwaysTheBestOfAllSelections) {
  int64_t missed = 0, cases = 0;
  double widest_gap = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    Head head = random_head(random, 1, 8);
    // The always-kept entry has more than half of the weight, as the theorem assumes.
    for (int64_t i = 0; i < 7; ++i) head.weights(0, i) *= 0.375;
    head.weights(0, 7) = 0.375 * head.weights(0, 7) + 0.625;
    const int64_t k = 1 + random.index(6);
    const Bounded found = total_bound(head, select_theta_sweep(head.input(), k));
    std::optional<Real> best;
    for (unsigned subset = 0; subset < 128; ++subset) {
      if (std::popcount(subset) != k) continue;
      Positions selected;
      for (int64_t i = 0; i < 7; ++i) {
        if (subset >> i & 1) selected.push_back(i);
      }
      const Real bound = total_bound(head, selected).value;
      if (!best || bound < *best) best = bound;
    }
    EXPECT_GE(found.value, *best);
    ++cases;
    missed += found.value - found.bound > *best;
    widest_gap = std::max(widest_gap, static_cast<double>(found.value / *best - 1));
  }
  RecordProperty("missed", std::to_string(missed) + " of " + std::to_string(cases));
  RecordProperty("widest_gap", std::to_string(widest_gap));
  EXPECT_LT(20 * missed, cases) << "widest gap " << widest_gap;
}

}  // namespace
}  // namespace kvbound::reference::theta_sweep_test
