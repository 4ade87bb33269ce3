#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/merge_effect.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::test::merge_effect_test {
namespace {

using namespace reference;

// A cache with two merged entries, of two and three members, in rows 1 and 4.
struct Case {
  explicit Case(uint64_t seed, double merged_size = 1) : random(seed), queries(random.matrix(3, 6)) {
    for (int64_t j = 0; j < 9; ++j) {
      const double size = j == 1 || j == 4 ? merged_size : 1;
      cache.append(j, 1 + static_cast<double>(j % 3), random.matrix(1, 6, size).row(0),
                   random.matrix(1, 6).row(0));
    }
    for (const auto& [row, members] : {std::pair{1, 2}, {4, 3}}) {
      MergedCluster& cluster = clusters.emplace_back();
      cluster.row = row;
      cluster.members = {
          random.matrix(members, 6), random.matrix(members, 6), std::vector<double>(members, 2), {}};
    }
  }

  CacheEntries before() const {
    CacheEntries entries;
    const auto append = [&](double votes, VectorView key, VectorView value) {
      entries.append(entries.entries(), votes, key, value);
    };
    for (int64_t j = 0; j < 9; ++j) {
      if (j != 1 && j != 4) append(cache.votes[j], cache.keys.row(j), cache.values.row(j));
    }
    for (const MergedCluster& cluster : clusters) {
      for (int64_t j = 0; j < cluster.members.keys.rows(); ++j) {
        append(cluster.members.votes[j], cluster.members.keys.row(j), cluster.members.values.row(j));
      }
    }
    return entries;
  }

  Random random;
  Matrix queries;
  double scale = 0.5;
  CacheEntries cache;
  std::vector<MergedCluster> clusters;
};

AttentionOutput attention_of(const Case& given, const CacheEntries& cache) {
  return attention(given.queries, cache.keys, cache.values, given.scale, cache.votes);
}

// Attention over a cache in 50 digits.
oracle::Attention attend(const Case& given, const CacheEntries& cache) {
  return oracle::attention(given.queries, cache.keys, cache.values, given.scale, cache.votes);
}

void expect_difference_of_outputs(const Case& given) {
  const MergeEffect effect = merge_effect(given.queries, given.scale, given.cache, given.clusters);
  const oracle::Attention before = attend(given, given.before()), now = attend(given, given.cache);
  for (size_t i = 0; i < 3; ++i) {
    const auto row = static_cast<int64_t>(i);
    for (size_t c = 0; c < 6; ++c) {
      const oracle::Bounded& o = before.output[i][c];
      const oracle::Bounded& o_now = now.output[i][c];
      EXPECT_TRUE(oracle::within(effect.change(row, c), {o.value - o_now.value, o.bound + o_now.bound}));
    }
    EXPECT_TRUE(oracle::within(effect.log_sum_exp[i], before.log_sum_exp[i]));
    // Weights follow from logits and log-sum-exps: a hundred roundings in double precision
    // bound the errors of both.
    const double off = 1e-14 * (1 + std::abs(effect.log_sum_exp[i]) + std::abs(effect.merged_logits(row, 0)) +
                                std::abs(effect.merged_logits(row, 1)));
    const AttentionOutput plain_before = attention_of(given, given.before());
    const AttentionOutput plain_now = attention_of(given, given.cache);
    EXPECT_NEAR(effect.merged_weights(row, 0), plain_now.weights(row, 1), off);
    EXPECT_NEAR(effect.merged_weights(row, 1), plain_now.weights(row, 4), off);
    double members = 0;
    for (int64_t j = 7; j < 12; ++j) members += plain_before.weights(row, j);
    EXPECT_NEAR(effect.members_weight[i], members, off);
  }
}

TEST(MergeEffect, IsTheDifferenceOfTheOutputs) {
  for (uint64_t seed = 0; seed < 20; ++seed) expect_difference_of_outputs(Case(seed));
}

TEST(MergeEffect, IsSoWhereMergedEntriesTakeNearlyAllAttention) {
  bool dominated = false;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Case given(seed, 20);
    const MergeEffect effect = merge_effect(given.queries, given.scale, given.cache, given.clusters);
    for (int64_t i = 0; i < 3; ++i) dominated = dominated || effect.merged_weights(i, 0) > 0.9999;
    expect_difference_of_outputs(given);
  }
  EXPECT_TRUE(dominated);
}

TEST(MergeEffect, OfAMergedLogitPastAllExponentialsIsFinite) {
  Case given(1);
  for (const double sign : {1.0, -1.0}) {
    for (int64_t c = 0; c < 6; ++c) given.cache.keys(1, c) = sign * 1e5 * given.queries(0, c);
    expect_difference_of_outputs(given);
  }
}

TEST(MergeEffect, HasTheMembersLogits) {
  const Case given(2);
  const MergeEffect effect = merge_effect(given.queries, given.scale, given.cache, given.clusters);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      const Matrix logit =
          attention_logits(given.queries.view().middle_rows(i, 1),
                           given.clusters[0].members.keys.view().middle_rows(j, 1), given.scale);
      EXPECT_NEAR(effect.member_logits(i, j), logit(0, 0), 1e-14);
    }
    const Matrix logits = attention_logits(given.queries, given.cache.keys, given.scale);
    EXPECT_EQ(effect.merged_logits(i, 1), logits(i, 4));
  }
  EXPECT_EQ(effect.member_logits.cols(), 5);
}

TEST(MergeEffect, OfMembersThatAreAllLikeTheMergedEntryIsAsSmallAsTheirShare) {
  // One entry with three votes is three equal entries: the output does not change, and other entries,
  // however large, add no rounding.
  Case given(3);
  given.clusters.resize(1);
  given.clusters[0].members = {};
  for (int64_t j = 0; j < 3; ++j) {
    given.clusters[0].members.keys.append_row(given.cache.keys.row(1));
    given.clusters[0].members.values.append_row(given.cache.values.row(1));
    given.clusters[0].members.votes.push_back(1);
  }
  given.cache.votes[1] = 3;
  for (double& number : given.cache.keys.row(1)) number *= 1e-3;
  for (int64_t c = 0; c < 6; ++c) {
    for (int64_t j = 0; j < 3; ++j) given.clusters[0].members.keys(j, c) = given.cache.keys(1, c);
    given.cache.keys(7, c) = 30 * given.queries(0, c);  // takes nearly all attention
  }
  const MergeEffect effect = merge_effect(given.queries, given.scale, given.cache, given.clusters);
  ASSERT_LT(effect.merged_weights(0, 0), 1e-10);
  for (const double number : effect.change.row(0)) EXPECT_LE(std::abs(number), 1e-10 * 1e-13);
}

TEST(MergeEffect, OfNoClustersIsNothing) {
  const Case given(4);
  const MergeEffect effect = merge_effect(given.queries, given.scale, given.cache, {});
  EXPECT_TRUE(std::ranges::all_of(effect.change.numbers(), [](double number) { return number == 0; }));
}

TEST(MergedCluster, IsWhereItsMembersAndTheMergedEntryAre) {
  CacheEntries before;
  for (const int64_t position : {2, 5, 7, 11}) {
    const auto number = static_cast<double>(position);
    before.append(position, number, matrix({{number}}).row(0), matrix({{-number}}).row(0));
  }
  const MergedCluster cluster = merged_cluster({7, {2, 11}, {}}, before, before.at({5, 7}));
  EXPECT_EQ(cluster.members.votes, (std::vector<double>{7, 2, 11}));
  EXPECT_EQ(cluster.members.keys(1, 0), 2);
  EXPECT_EQ(cluster.members.values(2, 0), -11);
  EXPECT_EQ(cluster.row, 1);
}

TEST(MergedCluster, IsRefusedWhereAPositionIsNotThere) {
  const Case given(1);
  const auto error = [&](const MergeCluster& cluster, const CacheEntries& after) {
    return message_of<ShapeMismatch>([&] { merged_cluster(cluster, given.cache, after); });
  };
  EXPECT_EQ(error({1, {2, 3}, {}}, given.cache), "no error");
  EXPECT_EQ(error({1, {2, 9}, {}}, given.cache), "position 9 is in no entry of the cache");
  EXPECT_EQ(error({1, {2, 3}, {}}, given.cache.at({2, 3})), "position 1 is in no entry of the cache");
}

}  // namespace
}  // namespace kvbound::test::merge_effect_test
