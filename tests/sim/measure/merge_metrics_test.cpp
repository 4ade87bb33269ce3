#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>
#include <kvbound/reference/merging/merge_bounds.hpp>
#include <kvbound/reference/numerics/vectors.hpp>
#include <kvbound/sim/measure/merge_metrics.hpp>
#include <kvbound/sim/measure/metrics.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/threads.hpp"
#include "support/trace_layer.hpp"

namespace kvbound::sim::merge_metrics_test {
namespace {

using test::column;
using test::matrix;
using test::Random;
using Positions = std::vector<int64_t>;

constexpr double kUnit = 0x1p-53;

// One head of dimension 1 with queries 1: logits are keys. Two prompt tokens, then decode steps.
traces::Layer hand_made_layer(const std::vector<double>& keys, const std::vector<double>& values) {
  traces::Layer layer;
  layer.shape = {1, 1, 1, 1};
  layer.prompt_tokens = 2;
  layer.window_queries = 1;
  layer.keys = column(keys);
  layer.values = column(values);
  layer.queries = column(std::vector<double>(keys.size() - 1, 1));
  layer.output_projection = matrix({{3}});
  return layer;
}

// Token 1 is merged into token 0, which then has these numbers; then steps without evictions.
LayerRecord hand_made_record(double votes, double key, double value, const Matrix& log_scores, size_t steps) {
  LayerRecord record;
  record.prompt.kept = {{0}};
  record.prompt.merges = {{{{0, {1}, log_scores}},
                           {.leaving = 1, .merged = 1, .clusters = 1},
                           {0},
                           {votes},
                           matrix({{key}}),
                           matrix({{value}})}};
  record.steps.resize(steps);
  for (StepRecord& step : record.steps) step.output = Matrix(1, 1);
  return record;
}

Policy policy(const std::string& text) { return parse_policy(text); }

TEST(MergeMetrics, OfAHandMadeMergeAreThoseOfPaper) {
  // Weights 1 and 2, values 4 and 1: o = 2. The merged entry alone outputs its own value.
  const traces::Layer layer = hand_made_layer({0, std::log(2.0), 0}, {4, 1, 8});
  const Matrix log_scores = matrix({{0, std::log(2.0)}});
  const LayerRecord record = hand_made_record(2, std::log(1.5), 2.5, log_scores, 1);
  const MergeMetrics metrics = measure_merges(layer, record, policy("snapkv:window=1+keepkv"), true);
  ASSERT_EQ(metrics.changes.size(), 1u);
  EXPECT_EQ(metrics.changes[0].step, -1);
  EXPECT_NEAR(metrics.changes[0].perturbation, 0.5, 8 * kUnit);
  EXPECT_FALSE(metrics.changes[0].rounding) << "a moving average is not lossless";
  EXPECT_EQ(metrics.counts.merged, 1);

  // At the step: (4 + 2 + 8)/4 before the merge; after it two votes of 3/2 and one of 1: (3 * 2.5 + 8)/4.
  ASSERT_TRUE(metrics.later);
  const LaterQueries& later = *metrics.later;
  EXPECT_NEAR(later.perturbation(0, 0), 15.5 / 4 - 3.5, 32 * kUnit);
  EXPECT_NEAR(later.share(0, 0), 0.75, 8 * kUnit);
  EXPECT_NEAR(later.sag(0, 0), 0, 8 * kUnit) << "members had 3/4, too";
  EXPECT_EQ(later.value_distance(0, 0), 7) << "8 and 1; the step's own entry counts";
  // The predictions are read as attention weights of 1, 2 and 3/2; the query's actual
  // weights are 1/4, 1/2 and 3/8.
  EXPECT_NEAR(later.prediction_error(0, 0), 3, 64 * kUnit);
  EXPECT_EQ(later.bound(0, 0), std::numeric_limits<double>::infinity());
  const MergeMetrics raw = measure_merges(layer, record, policy("snapkv:window=1+keepkv:scores=raw"), true);
  EXPECT_NEAR(raw.later->prediction_error(0, 0), 0, 16 * kUnit) << "raw scores are 1, 2 and 3/2";
  EXPECT_NEAR(raw.later->bound(0, 0), 0, 1e-13);
  EXPECT_NEAR(raw.later->joint_bound(0, 0), 0.375, 64 * kUnit) << "3/4 of |2.5 - 2|";
}

TEST(MergeMetrics, HoldLosslessMergesAgainstTheirRounding) {
  const traces::Layer layer = hand_made_layer({0, std::log(2.0), 0}, {4, 1, 8});
  const Matrix scores = matrix({{0, std::log(2.0)}});
  const auto change = [&](const std::string& text, double key, double value) {
    return measure_merges(layer, hand_made_record(2, key, value, scores, 0), policy(text)).changes.front();
  };
  for (const char* text : {"snapkv:window=1+keepkv:predict=current",
                           "snapkv:window=1+keepkv:predict=current:key=zip:gqa=mean"}) {
    const MergeChange right = change(text, std::log(1.5), 2);
    ASSERT_TRUE(right.rounding);
    EXPECT_LT(*right.rounding, 1e-13);
    EXPECT_FALSE(right.violates());
    EXPECT_TRUE(change(text, std::log(1.5), 2 + 1e-10).violates());
    EXPECT_TRUE(change(text, std::log(1.5), std::nan("")).violates());
  }
  for (const char* text : {"snapkv:window=1+keepkv:predict=current:key=convex", "snapkv:window=1+keepkv",
                           "snapkv:window=1+convex:predict=current", "snapkv:window=1+d2o"}) {
    EXPECT_FALSE(change(text, std::log(1.5), 2).rounding) << text;
    EXPECT_FALSE(change(text, std::log(1.5), 3).violates()) << "nothing is claimed of " << text;
  }
}

TEST(MergeMetrics, OfRebuildsAreLosslessWhateverElseIsPredicted) {
  const traces::Layer layer = hand_made_layer({0, std::log(2.0), std::log(3.0)}, {4, 1, 6});
  LayerRecord record = hand_made_record(2, 0.5, 2, matrix({{0, 1}}), 1);
  record.steps[0].rebuilt = true;
  // 0 and 1 are merged into the newest entry, 2: weights 1, 2 and 3
  record.steps[0].merges = {{{{2, {0, 1}, matrix({{std::log(3.0), 0, std::log(2.0)}})}},
                             {.leaving = 2, .merged = 2, .clusters = 1},
                             {2},
                             {3},
                             matrix({{std::log(2.0)}}),
                             matrix({{4}})}};
  const MergeMetrics metrics =
      measure_merges(layer, record, policy("snapkv:window=1+keepkv:period=1:threshold=none"), true);
  ASSERT_EQ(metrics.changes.size(), 2u);
  EXPECT_FALSE(metrics.changes[0].rounding);
  EXPECT_EQ(metrics.changes[1].step, 0);
  ASSERT_TRUE(metrics.changes[1].rounding);
  EXPECT_FALSE(metrics.changes[1].violates());
  EXPECT_EQ(metrics.counts.leaving, 3);
  EXPECT_NEAR(metrics.later->prediction_error(0, 0), 0, 32 * kUnit) << "the rebuild's own query, raw scores";
  EXPECT_NEAR(metrics.later->perturbation(0, 0), 0, 64 * kUnit);
}

TEST(MergeMetrics, SayOfMethodsWithoutVotesHowTheirEntriesSag) {
  // Equal logits: the members had 2/3 of the attention; their merged entry, with one vote, has 1/2.
  const traces::Layer layer = hand_made_layer({0, 0, 0}, {4, 1, 8});
  const LayerRecord record = hand_made_record(1, 0, 2.5, Matrix(1, 0), 1);
  const MergeMetrics metrics = measure_merges(layer, record, policy("snapkv:window=1+d2o"), true);
  EXPECT_NEAR(metrics.later->sag(0, 0), 2.0 / 3 - 0.5, 8 * kUnit);
  EXPECT_NEAR(metrics.later->perturbation(0, 0), 21.0 / 4 - 13.0 / 3, 32 * kUnit);
  for (const Matrix* figures :
       {&metrics.later->prediction_error, &metrics.later->value_distance, &metrics.later->bound,
        &metrics.later->shared_bound, &metrics.later->joint_bound, &metrics.later->variation_bound}) {
    EXPECT_TRUE(std::isnan((*figures)(0, 0))) << "nothing is predicted";
  }
  EXPECT_TRUE(metrics.later->violations.empty());
  EXPECT_FALSE(measure_merges(layer, record, policy("snapkv:window=1+cam"), true).later)
      << "values are spread";
  EXPECT_FALSE(measure_merges(layer, record, policy("snapkv:window=1+d2o")).later) << "not asked for";
}

// ---- layers of several heads, merged by the reference's own operation

struct Shape {
  LayerShape heads;
  int64_t prompt = 40, steps = 9, window = 3;
};

traces::Layer random_layer(const Shape& shape, uint64_t seed) {
  return test::random_trace_layer(shape.heads, 0.5, shape.prompt, shape.window, shape.steps, seed);
}

// An entry of one KV head.
struct Entry {
  double votes = 1;
  std::vector<double> key, value;
};
using Cache = std::map<int64_t, Entry>;

Entry original(const traces::Layer& layer, int64_t g, int64_t position) {
  const VectorView key = layer.keys.slice(g).row(position), value = layer.values.slice(g).row(position);
  return {1, {key.begin(), key.end()}, {value.begin(), value.end()}};
}

Matrix queries_at(const traces::Layer& layer, int64_t g, int64_t step) {
  Matrix queries;
  for (int64_t i = 0; i < layer.shape.group_size(); ++i) {
    queries.append_row(
        layer.queries.slice(g * layer.shape.group_size() + i).row(layer.window_queries + step));
  }
  return queries;
}

using reference::distance;

// Explicit caches, in which merges are recorded as a session would record them.
class Session {
 public:
  Session(const traces::Layer& layer, const KeepKv& options, double noise, uint64_t seed)
      : layer_(layer), options_(options), noise_(noise), random_(seed) {
    record_.prompt.kept.resize(layer.shape.kv_heads);
    record_.prompt.merges.resize(record_.prompt.kept.size());
    caches_.resize(record_.prompt.kept.size());
    for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
      Cache cache;
      for (int64_t j = 0; j < layer.prompt_tokens; ++j) cache[j] = original(layer, g, j);
      for (int64_t j = 3; j < layer.prompt_tokens; j += 11) cache.erase(j);  // dropped
      // Every fourth entry stays, and the two that follow it are merged into it.
      std::vector<Positions> clusters;
      for (int64_t j = 0; j + 2 < layer.prompt_tokens; j += 4) {
        Positions cluster{j};
        for (const int64_t other : {j + 1, j + 2}) {
          if (cache.contains(j) && cache.contains(other)) cluster.push_back(other);
        }
        if (cluster.size() > 1) clusters.push_back(cluster);
      }
      HeadMerge& merge = record_.prompt.merges[g];
      merge = merged(cache, g, -1, clusters, true);
      record_.prompt.kept[g] = merge.positions;
      caches_[g] = std::move(cache);
    }
  }

  // A step in which every KV head evicts the position `leaving` (-1: evicts none) and merges it
  // into `into` (-1: drops it).
  void step(int64_t leaving, int64_t into) {
    const auto t = std::ssize(record_.steps);
    StepRecord& step = record_.steps.emplace_back();
    step.output = Matrix(layer_.shape.query_heads, layer_.shape.head_dim);
    step.merges.resize(caches_.size());
    for (int64_t g = 0; g < layer_.shape.kv_heads; ++g) {
      Cache& cache = caches_[g];
      cache[layer_.prompt_tokens + t] = original(layer_, g, layer_.prompt_tokens + t);
      step.evicted.push_back(leaving);
      step.merged_into.push_back(leaving < 0 ? -2 : into);
      if (leaving >= 0 && into >= 0) step.merges[g] = merged(cache, g, t, {{into, leaving}}, false);
      cache.erase(leaving);
    }
  }

  LayerRecord& record() { return record_; }

 private:
  // Merges clusters of a cache; returns the record, with all entries or only the changed ones.
  HeadMerge merged(Cache& cache, int64_t g, int64_t step, const std::vector<Positions>& clusters, bool all) {
    const Matrix queries = queries_at(layer_, g, step);
    HeadMerge record;
    std::vector<double> denominators;
    for (int64_t i = 0; i < queries.rows(); ++i) {
      std::vector<double> weights;
      for (const auto& [position, entry] : cache) {
        weights.push_back(layer_.scale * reference::inner_product(queries.row(i), entry.key) +
                          std::log(entry.votes));
      }
      denominators.push_back(reference::log_sum_exp(weights));
    }
    const reference::MergeQueries merging({options_.key, options_.gqa, options_.rank}, queries, layer_.scale,
                                          denominators);
    for (const Positions& cluster : clusters) {
      reference::ClusterMembers members;
      members.log_scores = Matrix(queries.rows(), std::ssize(cluster));
      for (size_t j = 0; j < cluster.size(); ++j) {
        const Entry& entry = cache.at(cluster[j]);
        members.keys.append_row(entry.key);
        members.values.append_row(entry.value);
        members.votes.push_back(entry.votes);
        for (int64_t i = 0; i < queries.rows(); ++i) {
          const bool attention = options_.prediction.scores == ScoreKind::attention &&
                                 options_.prediction.predict == Prediction::ema;
          members.log_scores.row(i)[j] = layer_.scale * reference::inner_product(queries.row(i), entry.key) -
                                         (attention ? denominators[i] : 0) + noise_ * random_.uniform(-1, 1);
        }
      }
      const reference::MergedEntry entry = reference::merge_cluster(merging, members);
      cache[cluster.front()] = {entry.votes, entry.key, entry.value};
      record.clusters.push_back({cluster.front(), {cluster.begin() + 1, cluster.end()}, members.log_scores});
      if (all) {
        for (size_t j = 1; j < cluster.size(); ++j) cache.erase(cluster[j]);
      }
      record.counts.leaving += std::ssize(cluster) - 1;
      record.counts.merged += std::ssize(cluster) - 1;
      ++record.counts.clusters;
    }
    for (const auto& [position, entry] : cache) {
      const bool changed = std::ranges::any_of(
          clusters, [at = position](const Positions& cluster) { return cluster.front() == at; });
      if (!all && !changed) continue;
      record.positions.push_back(position);
      record.votes.push_back(entry.votes);
      record.keys.append_row(entry.key);
      record.values.append_row(entry.value);
    }
    return record;
  }

  const traces::Layer& layer_;
  KeepKv options_;
  double noise_;
  Random random_;
  LayerRecord record_;
  std::vector<Cache> caches_;
};

Policy keepkv(const KeepKv& options) {
  Policy policy;
  policy.host = H2o{};
  policy.merge = options;
  return policy;
}

KeepKv current(MergedKey key, MergeGqa gqa) {
  KeepKv options;
  options.threshold.reset();
  options.key = key;
  options.gqa = gqa;
  options.prediction.predict = Prediction::current;
  return options;
}

LayerRecord decoded(Session session) {
  session.step(-1, -1);
  session.step(8, 4);
  session.step(4, 12);
  session.step(12, -1);  // dropped, with everything merged into it
  session.step(40, 16);
  session.step(-1, -1);
  return session.record();
}

TEST(MergeMetrics, OfLosslessMergesAreWithinTheirRounding) {
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const traces::Layer layer = random_layer({{3, 3, 16, 8}}, seed);
      const KeepKv options = current(key, MergeGqa::mean);
      const LayerRecord record = decoded(Session(layer, options, 0, seed));
      const MergeMetrics metrics = measure_merges(layer, record, keepkv(options), true);
      ASSERT_EQ(metrics.changes.size(), 3u * 4);
      for (const MergeChange& change : metrics.changes) {
        ASSERT_TRUE(change.rounding);
        EXPECT_FALSE(change.violates()) << change.perturbation << " > " << *change.rounding;
      }
      EXPECT_TRUE(metrics.later->violations.empty());
    }
  }
}

TEST(MergeMetrics, OfSpoiltMergesAreNot) {
  const traces::Layer layer = random_layer({{3, 3, 16, 8}}, 1);
  const KeepKv options = current(MergedKey::min_norm, MergeGqa::joint);
  LayerRecord record = decoded(Session(layer, options, 0, 1));
  HeadMerge& merge = record.steps[1].merges[2];
  for (double& number : merge.values.row(0)) number *= 1 + 1e-9;
  const MergeMetrics metrics = measure_merges(layer, record, keepkv(options));
  std::vector<StepHead> found;
  for (const MergeChange& change : metrics.changes) {
    if (change.violates()) found.push_back({change.step, change.query_head});
  }
  EXPECT_EQ(found, (std::vector<StepHead>{{1, 2}, {2, 2}})) << "and the merge that its entry goes into next";
}

TEST(MergeMetrics, OfLaterQueriesAreWhatTheirDefinitionsSay) {
  const traces::Layer layer = random_layer({{4, 2, 8, 8}}, 3);
  KeepKv options;
  const LayerRecord record = decoded(Session(layer, options, 0.2, 3));
  const LaterQueries later = *measure_merges(layer, record, keepkv(options), true).later;
  // The latest merge with entries in the cache: at step 3 that of step 2; after step 4 the prompt's again.
  const int64_t n = layer.prompt_tokens;
  for (int64_t g = 0; g < 2; ++g) {
    // Step 0 sees all of the prompt's clusters.
    const HeadMerge& merge = record.prompt.merges[g];
    Matrix keys, values, all_keys, all_values, members;
    std::vector<double> votes, all_votes;
    std::map<int64_t, int64_t> row;
    for (size_t j = 0; j < merge.positions.size(); ++j) {
      const auto index = static_cast<int64_t>(j);
      row[merge.positions[j]] = index;
      keys.append_row(merge.keys.row(index));
      values.append_row(merge.values.row(index));
      votes.push_back(merge.votes[j]);
      if (merge.votes[j] > 1) continue;
      all_keys.append_row(merge.keys.row(index));
      all_values.append_row(merge.values.row(index));
    }
    for (Matrix* rows : {&keys, &all_keys}) rows->append_row(layer.keys.slice(g).row(n));
    for (Matrix* rows : {&values, &all_values}) rows->append_row(layer.values.slice(g).row(n));
    votes.push_back(1);
    const int64_t kept_as_they_were = all_keys.rows();
    for (const MergeCluster& cluster : merge.clusters) {
      Positions positions{cluster.into};
      positions.insert(positions.end(), cluster.from.begin(), cluster.from.end());
      for (const int64_t position : positions) {
        all_keys.append_row(layer.keys.slice(g).row(position));
        all_values.append_row(layer.values.slice(g).row(position));
        members.append_row(layer.values.slice(g).row(position));
      }
    }
    const Matrix queries = queries_at(layer, g, 0);
    const auto before = reference::attention(queries, all_keys, all_values, layer.scale);
    const auto now = reference::attention(queries, keys, values, layer.scale, votes);
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t h = 2 * g + i;
      EXPECT_NEAR(later.perturbation(0, h), distance(before.output.row(i), now.output.row(i)), 1e-14);
      double share = 0, joint = 0, epsilon = 0, change = 0, members_share = 0;
      int64_t member = kept_as_they_were;
      for (const MergeCluster& cluster : merge.clusters) {
        const double weight = now.weights(i, row.at(cluster.into));
        share += weight;
        double sum = 0, size = 0;
        std::vector<double> mean(8);
        for (size_t j = 0; j <= cluster.from.size(); ++j, ++member) {
          const double predicted = std::exp(cluster.log_scores.row(i)[j]);
          epsilon = std::max(epsilon, std::abs(1 - predicted / before.weights(i, member)));
          sum += predicted;
          ++size;
          for (size_t c = 0; c < 8; ++c) mean[c] += predicted * all_values.row(member)[c];
        }
        for (double& number : mean) number /= sum;
        for (size_t j = 0; j <= cluster.from.size(); ++j) {
          const double own = before.weights(
              i, member - static_cast<int64_t>(cluster.from.size()) - 1 + static_cast<int64_t>(j));
          members_share += own;
          change += std::abs(weight * std::exp(cluster.log_scores.row(i)[j]) / sum - own);
        }
        // The merged entry's actual score, normalised by the denominator of the cache before the merge.
        const double actual = weight / size * std::exp(now.log_sum_exp[i] - before.log_sum_exp[i]);
        epsilon = std::max(epsilon, std::abs(1 - sum / size / actual));
        joint += weight * distance(mean, values.row(row.at(cluster.into)));
      }
      EXPECT_NEAR(later.share(0, h), share, 1e-14);
      EXPECT_NEAR(later.prediction_error(0, h), epsilon, 1e-13 * (1 + epsilon));
      const double gamma = reference::largest_distance(all_values, members);
      EXPECT_GE(later.value_distance(0, h), gamma * (1 - 1e-15));
      EXPECT_NEAR(later.value_distance(0, h), gamma, 1e-14 * gamma);
      if (epsilon < 1) {
        const double sharpest =
            std::min(reference::later_bound(epsilon, gamma, share), epsilon * gamma);  // of several clusters
        EXPECT_NEAR(later.joint_bound(0, h), sharpest + joint,
                    1e-10 * later.joint_bound(0, h) / std::pow(1 - epsilon, 3));
      } else {
        EXPECT_EQ(later.joint_bound(0, h), std::numeric_limits<double>::infinity());
      }
      change += std::abs(share - members_share);  // of all others
      EXPECT_NEAR(later.variation_bound(0, h), gamma * change / 2 + joint, 1e-12);
      EXPECT_TRUE(std::isnan(later.bound(0, h))) << "claimed for one query head per KV head";
      // Later steps: the merges of steps 1 and 2 are the latest at steps 2 and 3; then the
      // prompt's remaining clusters are.
      for (int64_t t = 0; t < later.perturbation.rows(); ++t) EXPECT_GT(later.share(t, h), 0) << t;
      EXPECT_LT(later.share(2, h), share) << "one cluster";
    }
  }
  EXPECT_GT(later.share(4, 0), later.share(3, 0))
      << "the latest merge's entry was dropped: the prompt's again";
}

TEST(MergeMetrics, NeverViolateTheBoundsOfLaterQueriesWhereTheyAreClaimed) {
  int64_t claimed = 0;
  double tightest = 0, loosest = 1;
  for (const auto& heads : {LayerShape{3, 3, 16, 8}, LayerShape{4, 2, 8, 8}, LayerShape{6, 2, 4, 8}}) {
    for (const MergeGqa gqa : {MergeGqa::joint, MergeGqa::mean}) {
      for (const ScoreKind scores : {ScoreKind::attention, ScoreKind::raw}) {
        for (uint64_t seed = 0; seed < 6; ++seed) {
          traces::Layer layer = random_layer({heads}, seed);
          // Successive queries are alike, so that predictions are informative.
          for (int64_t h = 0; h < heads.query_heads; ++h) {
            const MutableMatrixView queries = layer.queries.slice(h);
            for (int64_t i = 1; i < queries.rows; ++i) {
              for (int64_t c = 0; c < queries.cols; ++c) queries(i, c) = queries(0, c) + 0.1 * queries(i, c);
            }
          }
          KeepKv options;
          options.gqa = gqa;
          options.prediction.scores = scores;
          const LayerRecord record = decoded(Session(layer, options, 0.05, seed));
          const LaterQueries later = *measure_merges(layer, record, keepkv(options), true).later;
          EXPECT_TRUE(later.violations.empty());
          for (int64_t t = 0; t < later.perturbation.rows(); ++t) {
            for (int64_t h = 0; h < heads.query_heads; ++h) {
              if (std::isnan(later.variation_bound(t, h))) continue;
              EXPECT_LE(later.perturbation(t, h), later.variation_bound(t, h) * (1 + 1e-9) + 1e-13);
              loosest = std::min(loosest, later.perturbation(t, h) / later.variation_bound(t, h));
              if (!(later.prediction_error(t, h) < 1)) continue;
              ++claimed;
              EXPECT_LE(later.perturbation(t, h), later.joint_bound(t, h) * (1 + 1e-9) + 1e-13);
              tightest = std::max(tightest, later.perturbation(t, h) / later.joint_bound(t, h));
              if (heads.group_size() > 1) continue;
              EXPECT_LE(later.shared_bound(t, h), later.bound(t, h));
            }
          }
        }
      }
    }
  }
  EXPECT_GT(claimed, 500);
  EXPECT_GT(tightest, 0.1) << "or nothing was tested";
  EXPECT_LT(loosest, 0.9) << "nor is it an equality";
}

TEST(MergeMetrics, NoteWhereABoundIsExceeded) {
  traces::Layer layer = random_layer({{2, 2, 8, 8}}, 5);
  const KeepKv options = current(MergedKey::min_norm, MergeGqa::joint);
  LayerRecord record = decoded(Session(layer, options, 0, 5));
  const auto violations = [&] {
    return measure_merges(layer, record, keepkv(options), true).later->violations;
  };
  EXPECT_TRUE(violations().empty());
  // Step 1 merges 8 into 4, and then the same query comes again: predictions are exact, and the
  // bound is 0 up to rounding.
  for (int64_t h = 0; h < 2; ++h) {
    std::ranges::copy(layer.queries.slice(h).row(layer.window_queries + 1),
                      layer.queries.slice(h).row(layer.window_queries + 2).begin());
  }
  EXPECT_TRUE(violations().empty());
  for (double& number : record.steps[1].merges[1].keys.row(0)) number *= 1 + 1e-6;
  EXPECT_TRUE(violations().empty()) << "the key's own error is in epsilon";
  record.steps[1].merges[1].votes[0] += 1e-3;
  EXPECT_EQ(violations(), (std::vector<StepHead>{{2, 1}})) << "no theorem speaks of votes that do not add up";
}

bool same(const Matrix& a, const Matrix& b) {
  return std::ranges::equal(a.numbers(), b.numbers(),
                            [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

TEST(MergeMetrics, DoNotDependOnThreads) {
  const traces::Layer layer = random_layer({{4, 2, 8, 8}}, 6);
  const KeepKv options;
  const LayerRecord record = decoded(Session(layer, options, 0.1, 6));
  const auto measured = [&] { return measure_merges(layer, record, keepkv(options), true); };
  const MergeMetrics one = test::with_threads(1, measured), three = test::with_threads(3, measured);
  ASSERT_EQ(one.changes.size(), three.changes.size());
  for (size_t i = 0; i < one.changes.size(); ++i) {
    EXPECT_EQ(one.changes[i].perturbation, three.changes[i].perturbation);
    EXPECT_EQ(one.changes[i].step, three.changes[i].step);
    EXPECT_EQ(one.changes[i].query_head, three.changes[i].query_head);
  }
  for (const auto figures : {&LaterQueries::perturbation, &LaterQueries::prediction_error,
                             &LaterQueries::value_distance, &LaterQueries::joint_bound, &LaterQueries::sag}) {
    EXPECT_TRUE(same((*one.later).*figures, (*three.later).*figures));
  }
}

}  // namespace
}  // namespace kvbound::sim::merge_metrics_test
