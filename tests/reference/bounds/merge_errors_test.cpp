// The rounding bound of lossless merges, from both sides: every merge inside, and merges that are wrong outside.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/merge_errors.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::test::merge_errors_test {
namespace {

using namespace reference;

// A cache before a merge, the clusters that merge in it, and for whom.
struct Case {
  Matrix query;  // [1, head_dim]
  double scale = 1;
  CacheEntries before;
  std::vector<std::vector<int64_t>> clusters;  // rows of `before`, disjoint, who stays first
};

struct Merged {
  CacheEntries after;
  std::vector<MergedCluster> clusters;
  int64_t singular = 0;
};

// Merges by the query's own scores, and lets `spoil` change every merged entry.
Merged merge(const Case& given, MergedKey key, const std::function<void(MergedEntry&)>& spoil = {}) {
  Merged result;
  const Matrix logits = attention_logits(given.query, given.before.keys, given.scale);
  const MergeQueries queries({key, MergeGqa::mean, 0.3}, given.query, given.scale);
  CacheEntries changed = given.before;
  std::vector<int64_t> gone;
  for (const std::vector<int64_t>& cluster : given.clusters) {
    ClusterMembers members;
    members.log_scores = Matrix(1, std::ssize(cluster));
    for (size_t j = 0; j < cluster.size(); ++j) {
      members.keys.append_row(given.before.keys.row(cluster[j]));
      members.values.append_row(given.before.values.row(cluster[j]));
      members.votes.push_back(given.before.votes[cluster[j]]);
      members.log_scores.row(0)[j] = logits(0, cluster[j]);
      if (j > 0) gone.push_back(cluster[j]);
    }
    MergedEntry entry = merge_cluster(queries, members);
    result.singular += entry.zip.singular;
    if (spoil) spoil(entry);
    std::ranges::copy(entry.key, changed.keys.row(cluster.front()).begin());
    std::ranges::copy(entry.value, changed.values.row(cluster.front()).begin());
    changed.votes[cluster.front()] = entry.votes;
  }
  std::vector<int64_t> staying;
  for (int64_t j = 0; j < changed.entries(); ++j) {
    if (std::ranges::find(gone, j) == gone.end()) staying.push_back(changed.positions[j]);
  }
  result.after = changed.at(staying);
  for (const std::vector<int64_t>& cluster : given.clusters) {
    MergeCluster positions;
    positions.into = given.before.positions[cluster.front()];
    for (size_t j = 1; j < cluster.size(); ++j) {
      positions.from.push_back(given.before.positions[cluster[j]]);
    }
    result.clusters.push_back(merged_cluster(positions, given.before, result.after));
  }
  return result;
}

double change(const Case& given, const Merged& merged) {
  const Matrix change = merge_effect(given.query, given.scale, merged.after, merged.clusters).change;
  return std::sqrt(inner_product(change.row(0), change.row(0)));
}

double bound(const Case& given, MergedKey key, const Merged& merged) {
  return lossless_merge_error(given.query.row(0), given.scale, key, merged.after, merged.clusters);
}

struct Shape {
  int64_t entries, head_dim, clusters, members;
  double votes = 1;  // at most so many
};

Case random_case(uint64_t seed, const Shape& shape, double size = 1) {
  Random random(seed);
  Case given;
  given.query = random.matrix(1, shape.head_dim, size);
  given.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  const Matrix keys = random.matrix(shape.entries, shape.head_dim, size);
  const Matrix values = random.matrix(shape.entries, shape.head_dim);
  for (int64_t j = 0; j < shape.entries; ++j) {
    given.before.append(3 * j, std::floor(random.uniform(1, shape.votes + 0.5)), keys.row(j), values.row(j));
  }
  const std::vector<int64_t> merging = random.subset(shape.entries, shape.clusters * shape.members);
  for (int64_t r = 0; r < shape.clusters; ++r) {
    std::vector<int64_t>& cluster = given.clusters.emplace_back();
    for (int64_t j = 0; j < shape.members; ++j) cluster.push_back(merging[j * shape.clusters + r]);
  }
  return given;
}

const std::vector<Shape> kShapes{{2, 4, 1, 2},          {20, 16, 3, 2},        {40, 64, 1, 30},
                                 {300, 64, 40, 3, 7},   {300, 128, 3, 90, 40}, {30, 8, 2, 4, 1e6},
                                 {1200, 64, 100, 10, 3}};

// What the merged numbers, as they are, change in exact arithmetic.
double exact_change(const Case& given, const Merged& merged) {
  const auto output = [&](const CacheEntries& cache) {
    return oracle::attention(given.query, cache.keys, cache.values, given.scale, cache.votes).output.front();
  };
  const oracle::Row before = output(given.before), after = output(merged.after);
  oracle::Real sum = 0;
  for (size_t c = 0; c < before.size(); ++c) {
    sum += (before[c].value - after[c].value) * (before[c].value - after[c].value);
  }
  return static_cast<double>(sqrt(sum));
}

TEST(LosslessMergeError, BoundsWhatTheMergedNumbersChangeInExactArithmetic) {
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip}) {
    for (const Shape& shape : {kShapes[0], kShapes[1], kShapes[2], kShapes[5]}) {
      for (uint64_t seed = 100; seed < 110; ++seed) {
        const Case given = random_case(seed, shape, seed % 2 == 0 ? 1 : 2);
        const Merged merged = merge(given, key);
        const double changed = exact_change(given, merged);
        ASSERT_GT(changed, 0) << "rounding is never without effect in 50 digits";
        EXPECT_LE(changed, bound(given, key, merged));
      }
    }
  }
}

struct Ratios {
  std::vector<double> ratios;
  double median() {
    std::ranges::sort(ratios);
    return ratios.at(ratios.size() / 2);
  }
};

TEST(LosslessMergeError, BoundsWhatMergesOfOrdinaryNumbersChange) {
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip}) {
    for (const Shape& shape : kShapes) {
      Ratios ratios;
      for (uint64_t seed = 0; seed < 25; ++seed) {
        const Case given = random_case(seed, shape, seed % 2 == 0 ? 1 : 2);
        const Merged merged = merge(given, key);
        const double changed = change(given, merged), allowed = bound(given, key, merged);
        ASSERT_TRUE(changed <= allowed) << "seed " << seed << ", " << shape.entries << " entries";
        if (changed > 0) ratios.ratios.push_back(allowed / changed);
        if (key == MergedKey::min_norm) {
          EXPECT_LT(allowed, 1e-11 * std::sqrt(static_cast<double>(shape.head_dim)))
              << "1e-11 of the values' length: a bound that allowed more would say little";
        }
      }
      std::cout << (key == MergedKey::zip ? "zip" : "min-norm") << ", " << shape.entries
                << " entries, head_dim " << shape.head_dim << ", " << shape.clusters << " groups of "
                << shape.members << ": bound/error, median " << ratios.median() << ", least "
                << ratios.ratios.front() << "\n";
    }
  }
}

// How many of the seeds' merges the bound catches if each is spoilt: of a small cache, and of a few in a large one.
int64_t caught(MergedKey key, const std::function<void(MergedEntry&)>& spoil, int64_t seeds) {
  int64_t count = 0;
  for (int64_t seed = 0; seed < seeds; ++seed) {
    for (const Shape& shape : {Shape{12, 16, 1, 3}, Shape{400, 64, 1, 3}}) {
      const Case given = random_case(static_cast<uint64_t>(seed), shape);
      const Merged merged = merge(given, key, spoil);
      count += !(change(given, merged) <= bound(given, key, merged));
    }
  }
  return count;
}

constexpr double kWrong = 1 + 1e-10;

TEST(LosslessMergeError, IsExceededByValuesThatAreWrongByTenToTheMinusTen) {
  const auto spoil = [](MergedEntry& entry) {
    for (double& number : entry.value) number *= kWrong;
  };
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip}) EXPECT_GE(caught(key, spoil, 50), 95);
}

TEST(LosslessMergeError, IsExceededByKeysThatAreWrongByTenToTheMinusTen) {
  const auto spoil = [](MergedEntry& entry) {
    for (double& number : entry.key) number *= kWrong;
  };
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip}) EXPECT_GE(caught(key, spoil, 50), 95);
}

TEST(LosslessMergeError, IsExceededByVotesThatAreWrongByTenToTheMinusTen) {
  const auto spoil = [](MergedEntry& entry) { entry.votes *= kWrong; };
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip}) EXPECT_GE(caught(key, spoil, 50), 95);
}

TEST(LosslessMergeError, IsExceededByConvexCombinationsAndByLostVotes) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Case given = random_case(seed, {20, 16, 3, 2});
    const Merged convex = merge(given, MergedKey::convex);
    EXPECT_GT(change(given, convex), 1e6 * bound(given, MergedKey::min_norm, convex));
    const Merged voteless = merge(given, MergedKey::min_norm, [](MergedEntry& entry) { entry.votes = 1; });
    EXPECT_GT(change(given, voteless), 1e6 * bound(given, MergedKey::min_norm, voteless));
  }
}

// One dimension, query 1, scale 1: keys are logits.
Case logits_of(const std::vector<double>& cluster, const std::vector<double>& votes) {
  Case given;
  given.query = matrix({{1}});
  for (size_t j = 0; j < cluster.size(); ++j) {
    given.before.append(static_cast<int64_t>(j), votes[j], VectorView(&cluster[j], 1),
                        matrix({{j == 0 ? 1.0 : -2.0}}).row(0));
  }
  given.before.append(100, 1, matrix({{0.25}}).row(0), matrix({{0.5}}).row(0));
  given.clusters = {{}};
  for (size_t j = 0; j < cluster.size(); ++j) given.clusters.front().push_back(j);
  return given;
}

TEST(LosslessMergeError, HasTheConditionOfScalesNextToSingularOnes) {
  // Weights 2 and 2: the mean logit would be 0, but for the shift, and KL is not.
  double last = 0;
  for (const double shift : {1e-2, 1e-5, 1e-8, 1e-11}) {
    const Case given = logits_of({std::log(2) + shift, -std::log(2) + shift}, {1, 4});
    const Merged merged = merge(given, MergedKey::zip);
    ASSERT_EQ(merged.singular, 0);
    const double allowed = bound(given, MergedKey::zip, merged);
    EXPECT_LE(change(given, merged), allowed) << shift;
    EXPECT_GT(allowed, 1e-17 / shift);
    EXPECT_LT(allowed, 1e-13 / shift);
    EXPECT_GT(allowed, 100 * last);
    EXPECT_LT(bound(given, MergedKey::min_norm, merge(given, MergedKey::min_norm)), 1e-13)
        << "which needs no scale";
    last = allowed;
  }
}

TEST(LosslessMergeError, OfASingularClusterIsThatOfTheMinimumNorm) {
  const Case given = logits_of({std::log(2), -std::log(2)}, {1, 4});
  const Merged merged = merge(given, MergedKey::zip);
  ASSERT_EQ(merged.singular, 1);
  const double allowed = bound(given, MergedKey::zip, merged);
  EXPECT_LE(change(given, merged), allowed);
  EXPECT_LT(allowed, 1e-13);
}

TEST(LosslessMergeError, BoundsMergesOfEqualScoresAndOfTheZeroQuery) {
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip}) {
    const Case equal = logits_of({0.5, 0.5, 0.5}, {1, 2, 3});
    Case zero = random_case(1, {20, 16, 3, 2});
    std::ranges::fill(zero.query.row(0), 0.0);
    for (const Case& given : {equal, zero}) {
      const Merged merged = merge(given, key);
      const double allowed = bound(given, key, merged);
      EXPECT_LE(change(given, merged), allowed);
      EXPECT_LT(allowed, 1e-12);
    }
  }
}

TEST(LosslessMergeError, BoundsMergesOfLogitsOfTenThousand) {
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip}) {
    for (const double size : {1e4, -1e4}) {
      for (const double gap : {0.0, 0.5, 30.0, 800.0}) {
        const Case given = logits_of({size, size - gap, size + gap / 3}, {1, 1e6, 2});
        const Merged merged = merge(given, key);
        const double allowed = bound(given, key, merged);
        EXPECT_LE(change(given, merged), allowed) << size << ", " << gap;
        EXPECT_LT(allowed, 1e-8) << "logits are off by 1e4 times 2^-53 and a few";
      }
    }
  }
}

TEST(LosslessMergeError, NeverExceedsWhatMeansOfTheValuesCanBeApart) {
  // The scale is past 1e15: nothing is known of the merged logit.
  Case given = logits_of({std::log(2) + 3e-12, -std::log(2) + 3e-12}, {1, 4});
  given.query(0, 0) = 1;
  const Merged merged = merge(given, MergedKey::zip);
  EXPECT_LE(change(given, merged), bound(given, MergedKey::zip, merged));
  EXPECT_LT(bound(given, MergedKey::zip, merged), 2.01 * 3) << "values lie within 3 of each other";
}

}  // namespace
}  // namespace kvbound::test::merge_errors_test
