// The change of outputs by the merge of one cluster alone, against attention over
// caches that are written out.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/merging/cluster_change.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::cluster_change_test {
namespace {

constexpr int64_t kHeadDim = 5, kEntries = 9;
const MergeCluster kCluster{3, {1, 6}, {}};
const std::vector<int64_t> kMembers{3, 1, 6};

CacheEntries random_cache(uint64_t seed) {
  test::Random random(seed);
  CacheEntries cache;
  const Matrix keys = random.matrix(kEntries, kHeadDim, 2), values = random.matrix(kEntries, kHeadDim);
  for (int64_t i = 0; i < kEntries; ++i) {
    cache.append(i, static_cast<double>(1 + random.index(3)), keys.row(i), values.row(i));
  }
  return cache;
}

CacheEntries without(const CacheEntries& cache, const std::vector<int64_t>& gone) {
  std::vector<int64_t> left;
  for (const int64_t position : cache.positions) {
    if (std::ranges::find(gone, position) == gone.end()) left.push_back(position);
  }
  return cache.at(left);
}

// The cache after its cluster has been merged by the queries' own scores.
CacheEntries merged(const CacheEntries& cache, MatrixView queries, const KeyRule& rule) {
  const Matrix logits = attention_logits(queries, cache.keys, 1);
  ClusterMembers members;
  members.log_scores = Matrix(queries.rows, std::ssize(kMembers));
  for (size_t j = 0; j < kMembers.size(); ++j) {
    members.keys.append_row(cache.keys.row(kMembers[j]));
    members.values.append_row(cache.values.row(kMembers[j]));
    members.votes.push_back(cache.votes[kMembers[j]]);
    for (int64_t h = 0; h < queries.rows; ++h) members.log_scores.row(h)[j] = logits(h, kMembers[j]);
  }
  const std::vector<double> denominators =
      attention(queries, cache.keys, cache.values, 1, cache.votes).log_sum_exp;
  const MergedEntry entry = merge_cluster(MergeQueries(rule, queries, 1, denominators), members);
  CacheEntries after = without(cache, kCluster.from);
  const int64_t row = after.find(kCluster.into);
  after.votes[row] = entry.votes;
  std::ranges::copy(entry.key, after.keys.row(row).begin());
  std::ranges::copy(entry.value, after.values.row(row).begin());
  return after;
}

Matrix outputs(MatrixView queries, const CacheEntries& cache) {
  return attention(queries, cache.keys, cache.values, 1, cache.votes).output;
}

double apart(const Matrix& a, const Matrix& b) {
  return std::sqrt(squared_distance(a.numbers(), b.numbers()));
}

// A generous bound on all roundings from these keys to an output: each entry's logit is off by at most
// gamma_d |q| |k| and a few units in the last place, which changes each of head_dim numbers by as much
// times the largest value.
double rounding(MatrixView queries, const CacheEntries& cache) {
  double largest_logit = 1, largest_value = 0;
  for (int64_t h = 0; h < queries.rows; ++h) {
    for (int64_t j = 0; j < cache.entries(); ++j) {
      double terms = 0;
      for (int64_t c = 0; c < queries.cols; ++c) terms += std::abs(queries(h, c) * cache.keys(j, c));
      largest_logit = std::max(largest_logit, terms);
    }
  }
  for (const double number : cache.values.numbers())
    largest_value = std::max(largest_value, std::abs(number));
  constexpr double kRoundings = 8 * (kHeadDim + kEntries + 8), kUnit = 0x1p-53;
  return kRoundings * kUnit / (1 - kRoundings * kUnit) * largest_logit * largest_value *
         static_cast<double>(kHeadDim * queries.rows);
}

TEST(ClusterChange, IsTheDifferenceOfOutputsOverTheCaches) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const CacheEntries before = random_cache(seed);
    test::Random random(seed + 100);
    const Matrix queries = random.matrix(3, kHeadDim);
    const CacheEntries after = merged(before, queries, {MergedKey::convex, MergeGqa::joint, 0.3});
    const ClusterChange change = ClusterChanges(queries, 1, before).of(kCluster, after);
    const Matrix now = outputs(queries, before);
    const double slack = rounding(queries, before);
    EXPECT_NEAR(change.merged, apart(outputs(queries, after), now), slack);
    EXPECT_NEAR(change.evicted, apart(outputs(queries, without(before, kCluster.from)), now), slack);
    EXPECT_GT(change.merged, 1e6 * slack);
    EXPECT_GT(change.evicted, 1e6 * slack);
  }
}

TEST(ClusterChange, IsTheDifferenceOfOutputsWhereTheClusterHoldsNearlyAll) {
  CacheEntries before = random_cache(7);
  const Matrix queries = test::matrix({{1, 2, -1, 0.5, 1}, {-1, 1, 1, 2, 0}});
  for (const int64_t member : kMembers) {
    for (int64_t c = 0; c < kHeadDim; ++c) before.keys(member, c) += 3 * (queries(0, c) + queries(1, c));
  }
  const CacheEntries after = merged(before, queries, {MergedKey::convex, MergeGqa::joint, 0.3});
  const ClusterChange change = ClusterChanges(queries, 1, before).of(kCluster, after);
  const Matrix now = outputs(queries, before);
  const double slack = rounding(queries, before);
  EXPECT_NEAR(change.merged, apart(outputs(queries, after), now), slack);
  EXPECT_NEAR(change.evicted, apart(outputs(queries, without(before, kCluster.from)), now), slack);
}

TEST(ClusterChange, IsNothingForOneHeadThatMergesByItsOwnScores) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const CacheEntries before = random_cache(seed);
    test::Random random(seed + 200);
    const Matrix query = random.matrix(1, kHeadDim);
    const CacheEntries after = merged(before, query, {MergedKey::min_norm, MergeGqa::joint, 0.3});
    const ClusterChange change = ClusterChanges(query, 1, before).of(kCluster, after);
    EXPECT_LE(change.merged, rounding(query, before));
    EXPECT_LE(change.floor, rounding(query, before));
    EXPECT_GT(change.evicted, 1e6 * rounding(query, before));
  }
}

// No direction is dropped, so every head attains its logit, and the joint value is optimal.
TEST(ClusterChange, ReachesTheFloorWithTheJointValueAndIsAboveItWithAnyOther) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const CacheEntries before = random_cache(seed);
    test::Random random(seed + 300);
    const Matrix queries = random.matrix(3, kHeadDim);
    CacheEntries after = merged(before, queries, {MergedKey::min_norm, MergeGqa::joint, 0});
    const ClusterChanges changes(queries, 1, before);
    const ClusterChange best = changes.of(kCluster, after);
    // The logits' roundings are amplified by the condition of the queries, which is below 1e4 here.
    const double slack = 1e4 * rounding(queries, before);
    EXPECT_NEAR(best.merged, best.floor, slack);
    EXPECT_GT(best.floor, 1e3 * slack);
    const int64_t row = after.find(kCluster.into);
    for (int64_t c = 0; c < kHeadDim; ++c) {
      for (const double shift : {-0.1, 0.1}) {
        after.values(row, c) += shift;
        EXPECT_GT(changes.of(kCluster, after).merged, best.floor);
        after.values(row, c) -= shift;
      }
    }
  }
}

}  // namespace
}  // namespace kvbound::reference::cluster_change_test
