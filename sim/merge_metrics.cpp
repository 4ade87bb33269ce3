#include "merge_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/error_bounds.hpp>
#include <kvbound/reference/inner_product.hpp>
#include <kvbound/reference/keep_kv.hpp>
#include <kvbound/reference/merge_bounds.hpp>
#include <kvbound/reference/merge_effect.hpp>
#include <kvbound/reference/merge_errors.hpp>
#include <kvbound/reference/merged_cache.hpp>
#include <kvbound/reference/parallel.hpp>

#include "metrics.hpp"

namespace kvbound::sim {
namespace {

using reference::CacheEntries;
using reference::CacheMerge;
using reference::MergedGroup;
using reference::MergeEffect;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double distance(VectorView x, VectorView y) { return std::sqrt(reference::squared_distance(x, y)); }

double norm(VectorView x) { return std::sqrt(reference::inner_product(x, x)); }

MergeCounts counts_of(const LayerRecord& record) {
  MergeCounts counts;
  for (const HeadMerge& merge : record.prompt.merges) counts += merge.counts;
  for (const StepRecord& step : record.steps) {
    for (const HeadMerge& merge : step.merges) counts += merge.counts;
  }
  return counts;
}

// The key by which a merge is lossless for the query that built it, if it is.
std::optional<MergedKey> lossless_key(const Policy& policy, const LayerShape& shape, bool rebuilt) {
  const auto* options = std::get_if<KeepKv>(&policy.merge);
  if (!options || shape.group_size() > 1 || options->key == MergedKey::convex) return std::nullopt;
  if (!rebuilt && options->prediction.predict != Prediction::current) return std::nullopt;
  return options->key;
}

// What a policy says of its predictions; nullopt: it has none.
std::optional<PredictedScores> prediction_of(const Policy& policy) {
  if (const auto* options = std::get_if<KeepKv>(&policy.merge)) return options->prediction;
  if (const auto* options = std::get_if<ConvexMerge>(&policy.merge)) return options->prediction;
  return std::nullopt;
}

// A merged entry that is still in the cache.
struct OpenGroup {
  int64_t into = 0;
  reference::GroupMembers members;        // as they were; log_scores may be empty
  std::vector<double> log_merged;         // [heads]: ln s^_r
  std::vector<double> value_apart;        // [heads]: ||v_r - v-_h||
  std::vector<double> value_apart_error;  // and how far rounding may take that
};

// A merge of which some merged entries are still in the cache.
struct OpenMerge {
  ScoreKind unit = ScoreKind::raw;  // of predicted scores
  std::vector<OpenGroup> groups;
  Matrix merged_values;  // of all members that there were
  double distance = 0;   // gamma, with those who came later
  int64_t next = 0;      // the first position that is not in it
};

// One KV head's caches from the prompt's end on.
class HeadMerges {
 public:
  HeadMerges(const traces::Layer& layer, const LayerRecord& record, const Policy& policy, int64_t kv_head,
             LaterQueries* later)
      : layer_(layer),
        record_(record),
        policy_(policy),
        kv_head_(kv_head),
        group_size_(layer.shape.group_size()),
        later_(later) {}

  std::vector<MergeChange> run() {
    reference::MergedCache cache(layer_.keys.slice(kv_head_), layer_.values.slice(kv_head_),
                                 layer_.prompt_tokens, kv_head_, record_.prompt);
    if (cache.prompt_merge()) take_in(*cache.prompt_merge(), cache.entries(), -1, false);
    for (size_t i = 0; i < record_.steps.size(); ++i) {
      const StepRecord& step = record_.steps[i];
      const auto t = static_cast<int64_t>(i);
      if (step.rebuilt) open_.clear();
      if (const auto merge = cache.enter(step)) take_in(*merge, cache.entries(), t, true);
      if (later_) measure_later(cache.entries(), t);
      const auto merge = cache.leave(step);
      if (!step.left.empty()) close(step.left[static_cast<size_t>(kv_head_)]);
      if (merge) take_in(*merge, cache.entries(), t, false);
    }
    return std::move(changes_);
  }

 private:
  // Each query head's query at a decode step; -1: the last one of the prompt.
  Matrix queries_at(int64_t step) const {
    Matrix queries;
    for (int64_t i = 0; i < group_size_; ++i) {
      queries.append_row(layer_.queries.slice(kv_head_ * group_size_ + i).row(layer_.window_queries + step));
    }
    return queries;
  }

  void take_in(const CacheMerge& merge, const CacheEntries& after, int64_t step, bool rebuilt) {
    measure_change(merge, after, step, rebuilt);
    if (!later_) return;
    for (const MergeGroup& group : *merge.groups) close(group.into);
    open(merge, after, step, rebuilt);
  }

  void measure_change(const CacheMerge& merge, const CacheEntries& after, int64_t step, bool rebuilt) {
    const Matrix queries = queries_at(step);
    std::vector<MergedGroup> groups;
    for (const MergeGroup& group : *merge.groups) groups.push_back(merged_group(group, merge.before, after));
    const Matrix changed = std::holds_alternative<Cam>(policy_.merge)
                               ? output_difference(queries, merge.before, after)
                               : merge_effect(queries, layer_.scale, after, groups).change;
    const std::optional<MergedKey> key = lossless_key(policy_, layer_.shape, rebuilt);
    for (int64_t i = 0; i < group_size_; ++i) {
      MergeChange& change = changes_.emplace_back();
      change.step = step;
      change.query_head = kv_head_ * group_size_ + i;
      change.perturbation = norm(changed.row(i));
      if (!key) continue;
      change.rounding = reference::lossless_merge_error(queries.row(i), layer_.scale, *key, after, groups);
    }
  }

  // Where entries change that are in no group.
  Matrix output_difference(MatrixView queries, const CacheEntries& before, const CacheEntries& after) const {
    const auto output = [&](const CacheEntries& cache) {
      return reference::attention(queries, cache.keys, cache.values, layer_.scale, cache.votes).output;
    };
    Matrix difference = output(before);
    const Matrix now = output(after);
    for (int64_t i = 0; i < difference.rows(); ++i) {
      for (int64_t c = 0; c < difference.cols(); ++c) difference(i, c) -= now(i, c);
    }
    return difference;
  }

  // The entry at a position no longer stands for its members.
  void close(int64_t position) {
    for (OpenMerge& merge : open_) {
      std::erase_if(merge.groups, [&](const OpenGroup& group) { return group.into == position; });
    }
    std::erase_if(open_, [](const OpenMerge& merge) { return merge.groups.empty(); });
  }

  void open(const CacheMerge& merge, const CacheEntries& after, int64_t step, bool rebuilt) {
    OpenMerge opened;
    const std::optional<PredictedScores> prediction = prediction_of(policy_);
    const bool by_average = prediction && !rebuilt && prediction->predict == Prediction::ema;
    opened.unit = by_average ? prediction->scores : ScoreKind::raw;
    for (const MergeGroup& group : *merge.groups) {
      const OpenGroup& last = opened.groups.emplace_back(open_group(group, merge.before, after));
      for (int64_t j = 0; j < last.members.values.rows(); ++j) {
        opened.merged_values.append_row(last.members.values.row(j));
      }
    }
    if (votes()) opened.distance = reference::largest_distance(merge.before.values, opened.merged_values);
    opened.next = layer_.prompt_tokens + step + 1;
    open_.push_back(std::move(opened));
  }

  static OpenGroup open_group(const MergeGroup& group, const CacheEntries& before,
                              const CacheEntries& after) {
    OpenGroup opened;
    opened.into = group.into;
    MergedGroup merged = merged_group(group, before, after);
    opened.members = std::move(merged.members);
    if (group.log_scores.cols() == 0) return opened;  // nothing was predicted
    for (int64_t i = 0; i < group.log_scores.rows(); ++i) {
      const VectorView log_scores = group.log_scores.row(i);
      opened.log_merged.push_back(reference::log_mean_score(opened.members.votes, log_scores));
      const reference::GroupMean mean = reference::group_mean(opened.members, log_scores);
      opened.value_apart.push_back(distance(mean.value, after.values.row(merged.row)));
      opened.value_apart_error.push_back(mean_error(opened.members, mean, log_scores));
    }
    return opened;
  }

  // How far rounding may take the mean value by given scores: the exponents' rounding, M terms and a quotient, for v_r likewise.
  static double mean_error(const reference::GroupMembers& members, const reference::GroupMean& mean,
                           VectorView log_scores) {
    double largest = 0, size = 0;
    for (size_t j = 0; j < log_scores.size(); ++j) {
      largest = std::max(largest, std::abs(log_scores[j]) + std::log(members.votes[j]));
      size += mean.weights[j] * norm(members.values.row(static_cast<int64_t>(j)));
    }
    constexpr double kUnit = 0x1p-53;
    return 2 * kUnit * (2 * static_cast<double>(log_scores.size()) + 8 * largest + 32) * size;
  }

  bool votes() const { return std::holds_alternative<KeepKv>(policy_.merge); }

  // The latest merge, as the step's queries see it.
  void measure_later(const CacheEntries& present, int64_t t) {
    if (open_.empty()) return;
    OpenMerge& merge = open_.back();
    if (votes()) take_in_new_values(merge, t);
    std::vector<MergedGroup> groups;
    for (const OpenGroup& group : merge.groups) groups.push_back({group.members, present.find(group.into)});
    const Matrix queries = queries_at(t);
    const MergeEffect effect = merge_effect(queries, layer_.scale, present, groups);
    for (int64_t i = 0; i < group_size_; ++i) {
      const int64_t h = kv_head_ * group_size_ + i;
      const VectorView weights = effect.merged_weights.row(i);
      later_->perturbation(t, h) = norm(effect.change.row(i));
      later_->share(t, h) = std::accumulate(weights.begin(), weights.end(), 0.0);
      later_->sag(t, h) = effect.members_weight[static_cast<size_t>(i)] - later_->share(t, h);
      if (merge.groups.front().log_merged.empty()) continue;
      later_->prediction_error(t, h) = prediction_error(merge, effect, i);
      if (!votes()) continue;
      fill_bounds(merge, weights, i, t);
      judge(merge, weights, present, queries.row(i), i, t);
    }
  }

  void take_in_new_values(OpenMerge& merge, int64_t t) const {
    const MatrixView values = layer_.values.slice(kv_head_);
    const int64_t end = layer_.prompt_tokens + t + 1;
    const double farthest =
        reference::largest_distance(values.middle_rows(merge.next, end - merge.next), merge.merged_values);
    merge.distance = std::max(merge.distance, farthest);
    merge.next = end;
  }

  static double prediction_error(const OpenMerge& merge, const MergeEffect& effect, int64_t head) {
    const double shift =
        merge.unit == ScoreKind::attention ? effect.log_sum_exp[static_cast<size_t>(head)] : 0;
    std::vector<double> predicted, actual;
    int64_t member = 0;
    for (size_t r = 0; r < merge.groups.size(); ++r) {
      const VectorView scores = merge.groups[r].members.log_scores.row(head);
      predicted.insert(predicted.end(), scores.begin(), scores.end());
      for (size_t j = 0; j < scores.size(); ++j)
        actual.push_back(effect.member_logits(head, member++) - shift);
      predicted.push_back(merge.groups[r].log_merged[static_cast<size_t>(head)]);
      actual.push_back(effect.merged_logits(head, static_cast<int64_t>(r)) - shift);
    }
    return reference::prediction_error(predicted, actual);
  }

  // sum_r A'_r ||v_r - v-_h||, or of the errors of these.
  static double weighted_sum(const OpenMerge& merge, VectorView weights,
                             const std::vector<double> OpenGroup::*figures, int64_t head) {
    double sum = 0;
    for (size_t r = 0; r < merge.groups.size(); ++r) {
      sum += weights[r] * (merge.groups[r].*figures)[static_cast<size_t>(head)];
    }
    return sum;
  }

  void fill_bounds(const OpenMerge& merge, VectorView weights, int64_t i, int64_t t) {
    const int64_t h = kv_head_ * group_size_ + i;
    const double error = later_->prediction_error(t, h), share = later_->share(t, h);
    later_->value_distance(t, h) = merge.distance;
    const double shared = reference::later_bound(error, merge.distance, share);
    later_->joint_bound(t, h) = shared + weighted_sum(merge, weights, &OpenGroup::value_apart, i);
    if (group_size_ > 1) return;
    later_->bound(t, h) = reference::later_bound(error, merge.distance);
    later_->shared_bound(t, h) = shared;
  }

  // Notes a violation. What rounding may have done is only looked at where there seems to be one.
  //
  // Log scores, predicted ones within 40 of them included (else epsilon is 1), are off by no more than l: those of logits and of
  // log-sum-exps. Weights are off by e^{2l} - 1 and their products and sums by gamma_k, k the terms of all sums; in merge_effect they
  // multiply values' distances from o', of which there are at most three times 2 max ||v||, and o' is off by that of max ||v||.
  void judge(const OpenMerge& merge, VectorView weights, const CacheEntries& present, VectorView query,
             int64_t i, int64_t t) {
    const int64_t h = kv_head_ * group_size_ + i;
    const double perturbation = later_->perturbation(t, h);
    if (perturbation <= later_->joint_bound(t, h)) return;
    constexpr double kUnit = 0x1p-53;
    constexpr double kOfDifferences = 0x1p-43;  // eight roundings of numbers up to 40, at least
    constexpr double kOwnRounding =
        0x1p-30;  // relative, more than rounding does to sums of nonnegative terms
    const MatrixView row(query.data(), 1, layer_.shape.head_dim);
    const reference::Arithmetic exact{.unit = 0, .smallest = 0x1p-1022, .exponential = 0, .rescalings = 0};
    double logit_error = 0, largest_value = 0;
    auto terms = static_cast<double>(present.entries() + layer_.shape.head_dim + 16);
    const auto look_at = [&](MatrixView keys, MatrixView values, VectorView votes) {
      const Matrix errors = reference::logit_errors(row, keys, layer_.scale, exact);
      const double log_sum_error =
          reference::attention_errors(row, keys, values, layer_.scale, votes, exact).log_sum_exp[0];
      logit_error = std::max(logit_error, 2 * *std::ranges::max_element(errors.row(0)) + log_sum_error);
      for (int64_t j = 0; j < values.rows; ++j) largest_value = std::max(largest_value, norm(values.row(j)));
      terms += static_cast<double>(values.rows);
    };
    look_at(present.keys, present.values, present.votes);
    for (const OpenGroup& group : merge.groups) {
      look_at(group.members.keys, group.members.values, group.members.votes);
    }
    const double off =
        std::expm1(2 * (logit_error + kOfDifferences) + 2 * terms * kUnit) * (1 + kOwnRounding);
    const double error = later_->prediction_error(t, h);
    const double worst_error = error + (1 + error) * off + kOwnRounding * error;
    if (!(worst_error < 1)) return;  // nothing is claimed
    const double apart = weighted_sum(merge, weights, &OpenGroup::value_apart, i) +
                         weighted_sum(merge, weights, &OpenGroup::value_apart_error, i);
    const double bound =
        (reference::later_bound(worst_error, merge.distance, later_->share(t, h)) + apart) * (1 + off) +
        8 * off * largest_value;
    if (!(perturbation <= bound * (1 + kOwnRounding))) violations_.push_back({t, h});
  }

 public:
  const std::vector<StepHead>& violations() const { return violations_; }

 private:
  const traces::Layer& layer_;
  const LayerRecord& record_;
  const Policy& policy_;
  int64_t kv_head_;
  int64_t group_size_;
  LaterQueries* later_;  // null: not asked for
  std::vector<MergeChange> changes_;
  std::vector<OpenMerge> open_;  // the latest last
  std::vector<StepHead> violations_;
};

Matrix undefined(int64_t steps, int64_t heads) {
  Matrix matrix(steps, heads);
  for (int64_t t = 0; t < steps; ++t) std::ranges::fill(matrix.row(t), kNan);
  return matrix;
}

}  // namespace

MergeMetrics measure_merges(const traces::Layer& layer, const LayerRecord& record, const Policy& policy,
                            bool later) {
  MergeMetrics metrics;
  metrics.counts = counts_of(record);
  if (later && !std::holds_alternative<Cam>(policy.merge)) {
    const Matrix matrix = undefined(static_cast<int64_t>(record.steps.size()), layer.shape.query_heads);
    metrics.later = LaterQueries{matrix, matrix, matrix, matrix, matrix, matrix, matrix, matrix, {}};
  }
  const auto kv_heads = static_cast<size_t>(layer.shape.kv_heads);
  std::vector<std::vector<MergeChange>> changes(kv_heads);
  std::vector<std::vector<StepHead>> violations(kv_heads);
  reference::parallel_for(layer.shape.kv_heads, [&](int64_t g) {
    HeadMerges head(layer, record, policy, g, metrics.later ? &*metrics.later : nullptr);
    changes[static_cast<size_t>(g)] = head.run();
    violations[static_cast<size_t>(g)] = head.violations();
  });
  for (size_t g = 0; g < kv_heads; ++g) {
    metrics.changes.insert(metrics.changes.end(), changes[g].begin(), changes[g].end());
    if (!metrics.later) continue;
    std::vector<StepHead>& all = metrics.later->violations;
    all.insert(all.end(), violations[g].begin(), violations[g].end());
  }
  if (metrics.later) {
    std::ranges::sort(metrics.later->violations, {},
                      [](const StepHead& at) { return std::pair(at.step, at.query_head); });
  }
  return metrics;
}

}  // namespace kvbound::sim
