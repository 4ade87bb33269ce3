// The rounding bound of lossless merges, from both sides: every correct merge is within it, every wrong one
// exceeds it. In single precision rounding is so large that the double reference is exact in comparison.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/merge_errors.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "directed.hpp"
#include "single_precision.hpp"
#include "slack.hpp"
#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::test::merge_errors_test {
namespace {

using namespace reference;

// A cache before a merge, the clusters that are merged, and the query.
struct Case {
  Matrix query;  // [1, head_dim]
  double scale = 1;
  CacheEntries before;
  std::vector<std::vector<int64_t>> clusters;  // disjoint rows of `before`, the staying entry first
};

struct Merged {
  CacheEntries after;
  std::vector<MergedCluster> clusters;
  int64_t singular = 0;
};

// Merges by the query's own scores; `spoil`, if given, changes every merged entry.
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
  double votes = 1;  // the largest number of votes
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

// The exact change of the query's output by the merged numbers as they were computed.
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

TEST(LosslessMergeError, BoundsWhatMergesOfOrdinaryNumbersChange) {
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip}) {
    for (const Shape& shape : kShapes) {
      Slack ratios;
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

// The number of spoilt merges that exceed the bound; each seed gives one merge in a small cache
// and one in a large cache.
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

// A cluster in one dimension with query 1 and scale 1, so that keys are logits.
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
  // Weights 2 and 2: without the shift the mean logit would be 0, while KL would not.
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
  // The scale exceeds 1e15, so nothing is certain about the merged logit.
  Case given = logits_of({std::log(2) + 3e-12, -std::log(2) + 3e-12}, {1, 4});
  given.query(0, 0) = 1;
  const Merged merged = merge(given, MergedKey::zip);
  EXPECT_LE(change(given, merged), bound(given, MergedKey::zip, merged));
  EXPECT_LT(bound(given, MergedKey::zip, merged), 2.01 * 3) << "values lie within 3 of each other";
}

// A thousand equal members become one entry, beside another entry with as many votes; the merge's
// sums are rounded to 24 bits.
struct LargeCluster {
  static constexpr int64_t kMembers = 1000;
  static constexpr double kSums = kMembers * 0x1p-24;

  LargeCluster(const Matrix& key, double value, double other)
      : members{filled(kMembers, 2, 0), filled(kMembers, 2, value), std::vector<double>(kMembers, 1), {}} {
    for (int64_t j = 0; j < kMembers; ++j) std::ranges::copy(key.row(0), members.keys.row(j).begin());
    after.append(0, kMembers, key.row(0), filled(1, 2, value).row(0));
    after.append(kMembers, kMembers, Matrix(1, 2).row(0), filled(1, 2, other).row(0));
  }
  double bound() const {
    Arithmetic arithmetic = nothing_rounds();
    arithmetic.unit = 0x1p-24;
    return lossless_merge_error(query.row(0), 1, MergedKey::min_norm, after, clusters(), arithmetic);
  }
  double change() const {
    const Matrix change = merge_effect(query, 1, after, clusters()).change;
    return std::sqrt(inner_product(change.row(0), change.row(0)));
  }
  std::vector<MergedCluster> clusters() const { return {{members, 0}}; }

  Matrix query = filled(1, 2, 1);
  ClusterMembers members;
  CacheEntries after;
};

TEST(LosslessMergeError, CountsTheRoundingOfValues) {
  // All values are equal, so that only values' roundings matter: sums of weights are rounded
  // down, sums of products up.
  LargeCluster cluster(Matrix(1, 2), 1, 1);
  for (double& number : cluster.after.values.row(0)) number += 2 * LargeCluster::kSums;
  expect_tight(cluster.change(), cluster.bound(), 2.1);
}

TEST(LosslessMergeError, CountsTheRoundingOfLogits) {
  // Products 100 and -100 whose sum is 0: the mean key's two components are rounded apart, by
  // more than the weights are.
  LargeCluster cluster(matrix({{100, -100}}), 1, -1);
  for (double& number : cluster.after.keys.row(0)) number += 100 * LargeCluster::kSums;
  expect_tight(cluster.change(), cluster.bound(), 10);
}

// The steps of merge_cluster and merge_effect with every operation rounded to single precision.
namespace in_single {

float logit(const Row& query, VectorView key, double scale) {
  float sum = 0;
  for (size_t c = 0; c < query.size(); ++c) sum += query[c] * single(key[c]);
  return single(scale) * sum;
}

MergedEntry merge_cluster(const Row& query, double scale, MergedKey rule, const ClusterMembers& members) {
  const size_t count = members.votes.size();
  Row logits, weights;
  float votes = 0;
  for (size_t j = 0; j < count; ++j) {
    logits.push_back(logit(query, members.keys.row(static_cast<int64_t>(j)), scale));
    weights.push_back(logits[j] + std::log(single(members.votes[j])));
    votes += single(members.votes[j]);
  }
  weights = Softmax(weights).weights;
  Row key = weighted_rows(weights, rows_of(members.keys));
  const Row value = weighted_rows(weights, rows_of(members.values));
  float apart = 0, size = 0;
  for (size_t j = 0; j < count; ++j) {
    apart += weights[j] * (logits[j] - logits[0]);
    size = std::max(size, std::abs(logits[j]));
  }
  const float mean = logits[0] + apart;
  float below = 0, whole = 0, squares = 0;
  for (size_t j = 0; j < count; ++j) {
    below += single(members.votes[j]) / votes * std::expm1(logits[j] - mean);
    whole += single(members.votes[j]) / votes * std::exp(logits[j] - mean);
  }
  for (const float x : query) squares += single(scale) * x * (single(scale) * x);
  const float divergence = std::max(0.0f, below > -0.5f ? -std::log1p(below) : -std::log(whole));
  const bool scaled = rule == MergedKey::zip && divergence > 0 && std::abs(mean) > 1e-12f * size;
  for (size_t c = 0; c < key.size(); ++c) {
    if (scaled) {
      key[c] *= 1 - divergence / mean;
    } else if (rule == MergedKey::min_norm || divergence > 0) {
      key[c] -= divergence * (single(scale) * query[c]) / squares;
    }
  }
  MergedEntry entry;
  entry.key.assign(key.begin(), key.end());
  entry.value.assign(value.begin(), value.end());
  entry.votes = votes;
  return entry;
}

// || o - o' ||_2
double change(const Case& given, const Merged& merged) {
  const Row query = row_of(given.query.row(0));
  const CacheEntries& after = merged.after;
  Row now, before;
  std::vector<bool> is_merged(after.votes.size());
  for (const MergedCluster& cluster : merged.clusters) is_merged[cluster.row] = true;
  for (int64_t j = 0; j < after.entries(); ++j) {
    now.push_back(logit(query, after.keys.row(j), given.scale) + std::log(single(after.votes[j])));
    if (!is_merged[j]) before.push_back(now.back());
  }
  std::vector<Row> members;
  for (const MergedCluster& cluster : merged.clusters) {
    Row& logits = members.emplace_back();
    for (int64_t j = 0; j < cluster.members.keys.rows(); ++j) {
      logits.push_back(logit(query, cluster.members.keys.row(j), given.scale) +
                       std::log(single(cluster.members.votes[j])));
      before.push_back(logits.back());
    }
  }
  const float log_before = Softmax(before).log_sum;
  const Row output = weighted_rows(Softmax(now).weights, rows_of(after.values));
  Row result(query.size());
  const auto add = [&](float weight, VectorView value) {
    for (size_t c = 0; c < result.size(); ++c) result[c] += weight * (single(value[c]) - output[c]);
  };
  for (size_t r = 0; r < members.size(); ++r) {
    const MergedCluster& cluster = merged.clusters[r];
    for (size_t j = 0; j < members[r].size(); ++j) {
      add(std::exp(members[r][j] - log_before), cluster.members.values.row(static_cast<int64_t>(j)));
    }
    add(-std::exp(now[cluster.row] - log_before), after.values.row(cluster.row));
  }
  return std::sqrt(inner_product(std::vector<double>(result.begin(), result.end()),
                                 std::vector<double>(result.begin(), result.end())));
}

}  // namespace in_single

// A random case whose numbers single precision holds exactly.
Case single_precision_case(uint64_t seed, const Shape& shape, double size) {
  Case given = random_case(seed, shape, size);
  for (Matrix* numbers : {&given.query, &given.before.keys, &given.before.values}) {
    for (int64_t i = 0; i < numbers->rows(); ++i) {
      for (double& x : numbers->row(i)) x = single(x);
    }
  }
  given.scale = single(given.scale);
  return given;
}

Merged merge_in_single(const Case& given, MergedKey key) {
  const Row query = row_of(given.query.row(0));
  Merged merged = merge(given, key);
  for (MergedCluster& cluster : merged.clusters) {
    const MergedEntry entry = in_single::merge_cluster(query, given.scale, key, cluster.members);
    std::ranges::copy(entry.key, merged.after.keys.row(cluster.row).begin());
    std::ranges::copy(entry.value, merged.after.values.row(cluster.row).begin());
    merged.after.votes[cluster.row] = entry.votes;
  }
  return merged;
}

struct SingleShape {
  Shape shape;
  uint64_t cases;
  double median;  // upper limit for the median of bound over error
};

// Measured over 200 merges of each shape: a single bound of one shape exceeds 1 % of the values' length;
// medians of bound over error are 49, 319 to 363, 186 to 198, 1,180 to 1,350 and 1,760 to 1,930 in this
// order. The limits asserted are about twice as large.
TEST(LosslessMergeError, HoldsInSinglePrecisionAndSaysSomething) {
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip}) {
    for (const auto& [shape, cases, median] : {SingleShape{kShapes[0], 200, 100},
                                               {kShapes[1], 200, 700},
                                               {kShapes[5], 200, 400},
                                               {kShapes[2], 50, 2700},
                                               {kShapes[3], 20, 3900}}) {
      Slack ratios;
      uint64_t vacuous = 0;
      for (uint64_t seed = 0; seed < cases; ++seed) {
        const Case given = single_precision_case(seed, shape, seed % 2 == 0 ? 1 : 2);
        const Merged merged = merge_in_single(given, key);
        const double allowed = lossless_merge_error(given.query.row(0), given.scale, key, merged.after,
                                                    merged.clusters, single_precision());
        // The change by the merged numbers evaluated exactly, and evaluated in single precision as well.
        const double of_merge = change(given, merged), of_both = in_single::change(given, merged);
        ASSERT_TRUE(of_merge <= allowed && of_both <= allowed)
            << "seed " << seed << ", " << shape.entries << " entries: " << of_merge << ", " << of_both
            << " > " << allowed;
        vacuous += !(allowed < 0.01 * std::sqrt(static_cast<double>(shape.head_dim)));
        if (of_both > 0) ratios.ratios.push_back(allowed / of_both);
      }
      std::cout << (key == MergedKey::zip ? "zip" : "min-norm") << ", " << shape.entries
                << " entries, head_dim " << shape.head_dim << ": " << vacuous << " of " << cases
                << " bounds above 1 % of the values' length; bound/error, median " << ratios.median()
                << ", least " << ratios.ratios.front() << "\n";
      EXPECT_LE(vacuous, cases / 20);
      EXPECT_LT(ratios.median(), median) << shape.entries << " entries";
    }
  }
}

}  // namespace
}  // namespace kvbound::test::merge_errors_test
