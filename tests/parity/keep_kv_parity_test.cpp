// KeepKV's merge on the device within the bounds of a merged entry: keys, values, votes and predicted scores.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <kvbound/cuda/merging/keep_kv.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "clusters.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

enum class Scores {
  random,
  equal,    ///< of all entries
  tied,     ///< three different ones
  peaked,   ///< apart by up to 60
  extreme,  ///< near -1e4 and 1e4
};
constexpr Scores kScores[] = {Scores::random, Scores::equal, Scores::tied, Scores::peaked, Scores::extreme};

enum class Queries {
  random,
  parallel,  ///< nearly
  equal,     ///< of all heads of a group
  zero,
};

std::string_view name(Scores kind) {
  constexpr std::string_view kNames[] = {"random", "equal", "tied", "peaked", "extreme"};
  return kNames[static_cast<size_t>(kind)];
}
std::string_view name(Queries kind) {
  constexpr std::string_view kNames[] = {"random", "parallel", "equal", "zero"};
  return kNames[static_cast<size_t>(kind)];
}

struct Case {
  ClusterCase clusters = {};
  int64_t group_size = 2;
  int64_t head_dim = 10;
  KeyRule rule = {};
  Scores scores = Scores::random;
  Queries queries = Queries::random;
  bool votes = false;

  int64_t kv_heads() const { return clusters.kv_heads(); }
  int64_t query_heads() const { return kv_heads() * group_size; }
  int64_t rows() const { return cuda::merging_rows(rule.gqa, group_size); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};

std::string text_of(const Case& c) {
  return std::string(name(c.scores)) + " scores, " + std::string(name(c.queries)) + " queries, " +
         std::to_string(c.clusters.tokens) + " entries, " + std::to_string(c.group_size) +
         " heads, head_dim " + std::to_string(c.head_dim) +
         (c.rule.gqa == MergeGqa::joint ? ", joint" : ", mean") + (c.votes ? ", votes" : "");
}

double score_of(Scores kind, double random, int64_t j) {
  switch (kind) {
    case Scores::random:
      return random - 8;
    case Scores::equal:
      return -3.25;
    case Scores::tied:
      return static_cast<double>(j % 3) - 4;
    case Scores::peaked:
      return 20 * random - 70;
    case Scores::extreme:
      return (j % 2 == 0 ? 1e4 : -1e4) + random;
  }
  return 0;
}

// The bounds of ln D, as reference::log_sum_exp gives it from the same scores.
double denominator_error(VectorView logits, const reference::Arithmetic& arithmetic) {
  const double size = reference::max_abs(logits), count = static_cast<double>(logits.size());
  return reference::sum_rounding(std::ssize(logits) + 8, arithmetic) +
         8 * (arithmetic.exponential + 0x1p-51) * (1 + size + std::log(count));
}

template <class T>
class KeepKvParity : public DeviceTest {
 protected:
  struct Result {
    std::vector<float> keys, values, log_scores, votes, log_votes, denominators;
    std::vector<uint8_t> zip;
  };

  struct Subject {
    Case c;
    Tensor keys, values, queries;
    Matrix scores;                           // [query_heads, tokens], exact in fp32
    std::vector<std::vector<double>> votes;  // [kv_heads][tokens]

    explicit Subject(const Case& given)
        : c(given),
          keys(rounded<T>(random_tensor(1, c.kv_heads(), c.clusters.tokens, c.head_dim))),
          values(rounded<T>(random_tensor(2, c.kv_heads(), c.clusters.tokens, c.head_dim))),
          queries(random_tensor(3, 1, c.query_heads(), c.head_dim)),
          scores(c.query_heads(), c.clusters.tokens) {
      const Tensor random = random_tensor(4, 1, c.query_heads(), c.clusters.tokens);
      for (int64_t h = 0; h < c.query_heads(); ++h) {
        for (int64_t j = 0; j < c.clusters.tokens; ++j) {
          scores(h, j) = static_cast<float>(score_of(c.scores, random.slice(0)(h, j), j));
        }
        for (int64_t d = 0; d < c.head_dim; ++d) {
          double& number = queries.data()[h * c.head_dim + d];
          const double first = queries.data()[h / c.group_size * c.group_size * c.head_dim + d];
          if (c.queries == Queries::equal) number = first;
          if (c.queries == Queries::parallel) number = first + number / 16;
          if (c.queries == Queries::zero) number = 0;
        }
      }
      queries = rounded<T>(std::move(queries));
      for (int64_t g = 0; g < c.kv_heads(); ++g) {
        std::vector<double>& own = votes.emplace_back();
        for (int64_t j = 0; j < c.clusters.tokens; ++j)
          own.push_back(c.votes ? static_cast<double>(1 + j * 13 % 40) : 1);
      }
    }

    Result run() const {
      const int64_t capacity = c.clusters.capacity(), stride = c.clusters.tokens + 3;
      ClustersOf clusters(c.clusters);
      const Uploaded<T> device_keys(keys), device_values(values), device_queries(queries);
      std::vector<float> all_scores, all_votes;
      for (int64_t h = 0; h < c.query_heads(); ++h) {
        all_scores.insert(all_scores.end(), scores.row(h).begin(), scores.row(h).end());
        all_scores.resize((h + 1) * stride, std::nanf(""));
      }
      for (int64_t g = 0; g < c.kv_heads(); ++g) {
        all_votes.insert(all_votes.end(), votes[g].begin(), votes[g].end());
        all_votes.resize((g + 1) * stride, std::nanf(""));
      }
      const cuda::Buffer<float> device_scores = cuda::upload(all_scores),
                                device_votes = cuda::upload(all_votes);
      const cuda::Buffer<int64_t> count = cuda::upload(Positions(c.kv_heads(), c.clusters.tokens));
      const cuda::ScoredEntries entries{device_scores.data(), c.votes ? device_votes.data() : nullptr,
                                        stride};

      const int64_t rows = c.rows(), weight_rows = c.kv_heads() * rows;
      Output denominators(c.query_heads()), kept(weight_rows * capacity),
          members(weight_rows * c.clusters.tokens), divergences(weight_rows * capacity),
          shares(weight_rows * capacity), zip(c.kv_heads() * capacity),
          log_scores(c.query_heads() * capacity), merged_votes(c.kv_heads() * capacity),
          log_votes(c.kv_heads() * capacity), scaled(weight_rows * c.head_dim),
          inverse(weight_rows * c.head_dim);
      cuda::Buffer<uint8_t> outcomes = cuda::upload(std::vector<uint8_t>(c.kv_heads() * capacity, 99));
      cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
      WorkingMemory sums(cuda::cluster_sums_workspace(c.kv_heads(), rows, c.clusters.tokens, c.head_dim));
      const bool is_zip = c.rule.key == MergedKey::zip;
      const cuda::MergeQueries prepared{scaled.data(), inverse.data()};
      const cuda::ClusterWeights weights{rows, kept.data(), members.data()};
      const cuda::MergedNumbers numbers{divergences.data(), shares.data(), is_zip ? zip.data() : nullptr,
                                        is_zip ? outcomes.data() : nullptr, log_scores.data()};
      CacheRows<T> merged_keys(c.kv_heads(), capacity, c.head_dim),
          merged_values(c.kv_heads(), capacity, c.head_dim);
      cuda::merge_queries<T>(c.rule, device_queries.view(), c.kv_heads(), c.scale(), prepared, nullptr);
      cuda::log_denominators(entries, c.query_heads(), c.kv_heads(), count.data(), denominators.data(),
                             nullptr);
      cuda::cluster_weights(c.rule, entries, c.query_heads(), c.kv_heads(), denominators.data(),
                            clusters.view(), weights, numbers,
                            {merged_votes.data(), log_votes.data(), capacity}, status.data(), nullptr);
      if (c.rule.key == MergedKey::convex) {
        cuda::weighted_means<T>(device_keys.view(), clusters.view(), weights, nullptr, merged_keys.view(),
                                status.data(), sums.view(), nullptr);
      } else {
        cuda::merged_keys<T>(c.rule, device_keys.view(), prepared, clusters.view(), weights, numbers,
                             merged_keys.view(), status.data(), sums.view(), nullptr);
      }
      cuda::weighted_means<T>(device_values.view(), clusters.view(), weights, shares.data(),
                              merged_values.view(), status.data(), sums.view(), nullptr);
      cuda::synchronise(nullptr);
      EXPECT_EQ(cuda::download(status), std::vector<int>{0});
      return {merged_keys.numbers(), merged_values.numbers(), log_scores.numbers(),    merged_votes.numbers(),
              log_votes.numbers(),   denominators.numbers(),  cuda::download(outcomes)};
    }

    std::vector<float> numbers() const {
      const Result result = run();
      std::vector<float> all;
      for (const auto* part :
           {&result.keys, &result.values, &result.log_scores, &result.votes, &result.denominators}) {
        all.insert(all.end(), part->begin(), part->end());
      }
      return all;
    }
  };

  // What the reference gives, and the bounds.
  struct Expected {
    reference::MergedEntry entry;
    reference::MergedEntryErrors errors;
  };

  static Expected expected(const Subject& subject, int64_t g, const Positions& cluster,
                           const std::vector<double>& log_denominators, const std::vector<double>& off) {
    const Case& c = subject.c;
    const reference::Arithmetic arithmetic = reference::single_precision();
    const MatrixView queries = subject.queries.slice(0).middle_rows(g * c.group_size, c.group_size);
    reference::ClusterMembers members{
        reference::rows_of(subject.keys.slice(g), cluster),
        reference::rows_of(subject.values.slice(g), cluster),
        {},
        reference::columns_of(subject.scores.view().middle_rows(g * c.group_size, c.group_size), cluster)};
    for (const int64_t entry : cluster) members.votes.push_back(subject.votes[g][entry]);
    const auto count = std::ssize(cluster);
    const reference::MemberErrors exact{Matrix(count, c.head_dim), Matrix(count, c.head_dim),
                                        Matrix(c.group_size, count)};
    return {merge_cluster({c.rule, queries, c.scale(), log_denominators}, members),
            merge_cluster_errors({c.rule, queries, c.scale(), log_denominators, off}, members, exact,
                                 arithmetic)};
  }

  void expect_row(const std::vector<float>& all, int64_t row, const std::vector<double>& number,
                  const std::vector<double>& errors, Comparator& comparator) {
    const auto cols = std::ssize(number);
    const std::span<const float> own(all.data() + row * cols, cols);
    if (reference::max_abs(errors) ==
        std::numeric_limits<double>::infinity()) {  // ill-conditioned: finite numbers
      ++ill_conditioned_;
      for (const float one : own) EXPECT_TRUE(std::isfinite(one));
      return;
    }
    EXPECT_TRUE(comparator.hold(own, number, with_storage<T>(errors, number)));
  }

  void expect_scores(const Result& result, const Case& c, int64_t g, int64_t i, const Expected& own) {
    for (int64_t h = 0; h < c.group_size; ++h) {
      const float score = result.log_scores[(g * c.group_size + h) * c.clusters.capacity() + i];
      EXPECT_TRUE(scores_.hold({&score, 1}, {&own.entry.log_scores[h], 1}, {&own.errors.log_scores[h], 1}));
    }
    const int64_t place = g * c.clusters.capacity() + i;
    EXPECT_EQ(result.votes[place], static_cast<float>(own.entry.votes));
    EXPECT_NEAR(result.log_votes[place], std::log(own.entry.votes), 2e-6);
    if (c.rule.key != MergedKey::zip ||
        reference::max_abs(own.errors.key) == std::numeric_limits<double>::infinity()) {
      return;
    }
    EXPECT_EQ((result.zip[place] & cuda::kSingular) != 0, own.entry.zip.singular);
    EXPECT_EQ((result.zip[place] & cuda::kNegative) != 0, own.entry.zip.negative());
    EXPECT_EQ((result.zip[place] & cuda::kFar) != 0, own.entry.zip.far());
  }

  void expect_parity(const Case& c) {
    SCOPED_TRACE(text_of(c));
    const Subject subject(c);
    const Result result = subject.run();
    const ClustersOf clusters(c.clusters);
    for (int64_t g = 0; g < c.kv_heads(); ++g) {
      std::vector<double> log_denominators, off;
      for (int64_t h = 0; h < c.group_size; ++h) {
        std::vector<double> logits;
        for (int64_t j = 0; j < c.clusters.tokens; ++j) {
          logits.push_back(subject.scores(g * c.group_size + h, j) + std::log(subject.votes[g][j]));
        }
        log_denominators.push_back(reference::log_sum_exp(logits));
        off.push_back(denominator_error(logits, reference::single_precision()));
        EXPECT_NEAR(result.denominators[g * c.group_size + h], log_denominators.back(), off.back());
      }
      for (int64_t i = 0; i < c.clusters.capacity(); ++i) {
        const int64_t row = g * c.clusters.capacity() + i;
        const Positions cluster = i < c.clusters.kept[g] ? clusters.lists()[g][i] : Positions{};
        if (cluster.size() < 2) {
          EXPECT_TRUE(std::isnan(result.keys[row * c.head_dim])) << "written without members";
          EXPECT_TRUE(std::isnan(result.values[row * c.head_dim])) << "written without members";
          continue;
        }
        const Expected own = expected(subject, g, cluster, log_denominators, off);
        expect_row(result.keys, row, own.entry.key, own.errors.key, keys_);
        expect_row(result.values, row, own.entry.value, own.errors.value, values_);
        expect_scores(result, c, g, i, own);
      }
    }
  }

  Comparator keys_{"keep_kv's keys, " + std::string(StorageName::GetName<T>(0))},
      values_{"keep_kv's values, " + std::string(StorageName::GetName<T>(0))},
      scores_{"keep_kv's predicted scores, " + std::string(StorageName::GetName<T>(0))};
  int64_t ill_conditioned_ = 0;
};
TYPED_TEST_SUITE(KeepKvParity, StorageTypes, StorageName);

constexpr KeyRule kRules[] = {{MergedKey::min_norm, MergeGqa::joint, 0.3},
                              {MergedKey::min_norm, MergeGqa::mean, 0.3},
                              {MergedKey::zip, MergeGqa::mean, 0.3},
                              {MergedKey::convex, MergeGqa::joint, 0.3},
                              {MergedKey::convex, MergeGqa::mean, 0.3}};

TYPED_TEST(KeepKvParity, MergesAcrossSizes) {
  for (const int64_t tokens : {1, 2, 31, 32, 33, 64, 65, 200}) {
    for (const KeyRule& rule : kRules) {
      this->expect_parity({.clusters = {.tokens = tokens, .kept = {(tokens + 3) / 4, 1}}, .rule = rule});
    }
  }
  EXPECT_TRUE(this->keys_.is_tight());
  EXPECT_TRUE(this->values_.is_tight());
  EXPECT_TRUE(this->scores_.is_tight());
}

TYPED_TEST(KeepKvParity, MergesEveryKindOfScoresByEveryRule) {
  for (const Scores scores : kScores) {
    for (const KeyRule& rule : kRules) {
      for (const bool votes : {false, true}) {
        this->expect_parity({.clusters = {.tokens = 90, .kept = {11, 4}},
                             .group_size = 3,
                             .head_dim = 40,
                             .rule = rule,
                             .scores = scores,
                             .votes = votes});
      }
    }
  }
}

TYPED_TEST(KeepKvParity, MergesForGroupsOfEverySize) {
  for (const int64_t group_size : {1, 2, 3, 5, 8, 13}) {
    for (const int64_t head_dim : {8, 64, 128, 256}) {
      this->expect_parity(
          {.clusters = {.tokens = 70, .kept = {9}}, .group_size = group_size, .head_dim = head_dim});
    }
  }
  EXPECT_EQ(this->ill_conditioned_, 0);
}

TYPED_TEST(KeepKvParity, DropsDirectionsOfSmallSingularValues) {
  for (const Queries queries : {Queries::parallel, Queries::equal, Queries::zero}) {
    for (const MergeGqa gqa : {MergeGqa::joint, MergeGqa::mean}) {
      this->expect_parity({.clusters = {.tokens = 70, .kept = {9, 8}},
                           .group_size = 4,
                           .head_dim = 64,
                           .rule = {MergedKey::min_norm, gqa, 0.3},
                           .queries = queries});
    }
  }
  EXPECT_EQ(this->ill_conditioned_, 0);
}

TYPED_TEST(KeepKvParity, MergesAClusterOfThousands) {
  for (const KeyRule& rule : kRules) {
    this->expect_parity({.clusters = {.tokens = 3000, .kept = {40, 7}, .sink = true}, .rule = rule});
  }
}

// Clusters that blocks weight: one that takes most entries.
TYPED_TEST(KeepKvParity, MergesLargeClustersByEveryRuleAndRow) {
  const auto merge = [&](int64_t group_size, const KeyRule& rule, Scores scores) {
    this->expect_parity({.clusters = {.tokens = 200, .kept = {9, 1}, .sink = true},
                         .group_size = group_size,
                         .head_dim = 64,
                         .rule = rule,
                         .scores = scores,
                         .votes = true});
  };
  for (const KeyRule& rule : kRules) {
    for (const Scores scores : kScores) {
      // Of extreme scores the bounds of corrections are as large as these.
      if (scores != Scores::extreme || rule.gqa == MergeGqa::mean) merge(3, rule, scores);
    }
    for (const int64_t group_size : {1, 5, 13}) merge(group_size, rule, Scores::random);
  }
}

// A cluster of all others: on both sides of what a warp weights, and of the lanes of two.
TYPED_TEST(KeepKvParity, MergesClustersAroundTheSizesOfTeams) {
  for (const int64_t tokens : {31, 32, 33, 34, 63, 64, 65, 66, 129}) {
    this->expect_parity({.clusters = {.tokens = tokens, .kept = {1, 1}}, .group_size = 5, .votes = true});
  }
}

TYPED_TEST(KeepKvParity, GivesTheSameUnderEverySchedule) {
  for (const KeyRule& rule : {kRules[0], kRules[2]}) {
    const typename TestFixture::Subject subject({.clusters = {.tokens = 300, .kept = {12, 5}, .sink = true},
                                                 .group_size = 3,
                                                 .rule = rule,
                                                 .votes = true});
    in_every_schedule([&] { return subject.numbers(); });
  }
}

class ClusterWeightsParity : public DeviceTest {};

TEST_F(ClusterWeightsParity, ReportsScoresThatAreNotFinite) {
  for (const int64_t tokens : {8, 80}) {
    ClustersOf clusters({.tokens = tokens, .kept = {2}, .sink = true});
    const Positions& cluster = clusters.lists()[0][0];
    ASSERT_GE(std::ssize(cluster), 3 * tokens / 8);
    for (const float bad :
         {std::nanf(""), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> scores(tokens, -1);
      scores[cluster.back()] = bad;
      const cuda::Buffer<float> device_scores = cuda::upload(scores);
      Output kept(4), members(tokens), divergences(4), shares(4), log_scores(4);
      cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
      cuda::cluster_weights({}, {device_scores.data(), nullptr, tokens}, 1, 1, nullptr, clusters.view(),
                            {1, kept.data(), members.data()},
                            {divergences.data(), shares.data(), nullptr, nullptr, log_scores.data()}, {},
                            status.data(), nullptr);
      EXPECT_EQ(cuda::download(status), std::vector<int>{1}) << bad << ", " << tokens << " entries";
    }
  }
}

TYPED_TEST(KeepKvParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const Uploaded<T> keys(Tensor(2, 5, 8)), wide(Tensor(2, 5, 257)), queries(Tensor(1, 4, 8)),
      odd(Tensor(1, 5, 8));
  CacheRows<T> cache(2, 5, 8), narrow(2, 5, 7), one(1, 5, 8);
  const cuda::MergedEntries merged{{}, {nullptr, 3, nullptr, 2}, nullptr};
  EXPECT_THROW(cuda::merge_queries<T>({}, odd.view(), 2, 1, {}, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::merge_queries<T>({}, keys.view(), 5, 1, {}, nullptr), ShapeMismatch);
  const Uploaded<T> many(Tensor(1, 200, 8));
  EXPECT_THROW(cuda::merge_queries<T>({}, many.view(), 1, 1, {}, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::log_denominators({}, 5, 2, nullptr, nullptr, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::cluster_weights({}, {}, 4, 2, nullptr, merged, {1}, {}, {}, nullptr, nullptr),
               ShapeMismatch);
  const auto merge = [&](const Uploaded<T>& entries, CacheRows<T>& to, const KeyRule& rule) {
    cuda::merged_keys<T>(rule, entries.view(), {}, merged, {2}, {}, to.view(), nullptr, {}, nullptr);
  };
  EXPECT_THROW(merge(wide, cache, {}), ShapeMismatch);
  EXPECT_THROW(merge(keys, narrow, {}), ShapeMismatch);
  EXPECT_THROW(merge(keys, one, {}), ShapeMismatch);
  EXPECT_THROW(merge(keys, cache, {MergedKey::zip, MergeGqa::mean, 0}), ShapeMismatch);
}

class KeepKvOverflowParity : public DeviceTest {
 protected:
  struct Result {
    int status;
    std::vector<float> key;
  };
  // The key of two equal keys with scores far apart, and the status before and after.
  template <cuda::Storage T>
  static Result merged_key(double number, double query_number) {
    const KeyRule rule;
    ClustersOf clusters({.tokens = 2, .kept = {1}});
    Tensor keys(1, 2, 8), query(1, 1, 8);
    std::ranges::fill(keys.numbers(), number);
    query.data()[0] = query_number;
    const Uploaded<T> device_keys(rounded<T>(keys)), device_query(rounded<T>(query));
    const cuda::Buffer<float> scores = cuda::upload(std::vector<float>{-20, -1});
    Output kept(3), members(2), divergences(3), shares(3), log_scores(3), scaled(8), inverse(8);
    const cuda::MergeQueries prepared{scaled.data(), inverse.data()};
    const cuda::ClusterWeights weights{1, kept.data(), members.data()};
    const cuda::MergedNumbers numbers{divergences.data(), shares.data(), nullptr, nullptr, log_scores.data()};
    cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
    CacheRows<T> cache(1, 3, 8);
    cuda::merge_queries<T>(rule, device_query.view(), 1, 1, prepared, nullptr);
    cuda::cluster_weights(rule, {scores.data(), nullptr, 2}, 1, 1, nullptr, clusters.view(), weights, numbers,
                          {}, status.data(), nullptr);
    EXPECT_EQ(cuda::download(status), std::vector<int>{0});
    cuda::merged_keys<T>(rule, device_keys.view(), prepared, clusters.view(), weights, numbers, cache.view(),
                         status.data(), {}, nullptr);
    std::vector<float> key = cache.numbers();
    key.resize(8);
    return {cuda::download(status).front(), key};
  }
};

TEST_F(KeepKvOverflowParity, IsReportedForKeysBeyondTheStorageType) {
  EXPECT_EQ(merged_key<cuda::Float16>(-65504, 1e-2).status, 1);
  EXPECT_EQ(merged_key<cuda::Float16>(-60000, 1).status, 0);
}

// The correction for a query so near to 0 is beyond single precision.
TEST_F(KeepKvOverflowParity, LeavesOutCorrectionsThatAreNotFinite) {
  const Result result = merged_key<float>(3, 1e-40);
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.key, std::vector<float>(8, 3));
}

}  // namespace
}  // namespace kvbound::parity
