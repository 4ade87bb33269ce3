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
#include <kvbound/reference/merge_errors.hpp>
#include <kvbound/reference/merged_cache.hpp>
#include <kvbound/reference/parallel.hpp>

#include "metrics.hpp"

namespace kvbound::sim {
namespace {

using reference::AttentionOutput;
using reference::CacheEntries;
using reference::CacheMerge;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double distance(VectorView x, VectorView y) { return std::sqrt(reference::squared_distance(x, y)); }

double norm(VectorView x) { return std::sqrt(reference::inner_product(x, x)); }

AttentionOutput attend(MatrixView queries, const CacheEntries& cache, double scale) {
  return reference::attention(queries, cache.keys, cache.values, scale, cache.votes);
}

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

// A cache with members in the place of merged entries: first the entries that are as they were, then the members, group by group.
struct Replaced {
  CacheEntries cache;  // positions left out
  Matrix member_keys;
  Matrix merged_keys;
  std::vector<int64_t> merged_rows;  // of the present cache
};

Replaced replace(const OpenMerge& merge, const CacheEntries& present) {
  Replaced result;
  for (const OpenGroup& group : merge.groups) {
    result.merged_rows.push_back(present.find(group.into));
    result.merged_keys.append_row(present.keys.row(result.merged_rows.back()));
  }
  const auto append = [&](double votes, VectorView key, VectorView value) {
    result.cache.votes.push_back(votes);
    result.cache.keys.append_row(key);
    result.cache.values.append_row(value);
  };
  for (int64_t j = 0; j < present.entries(); ++j) {
    if (std::ranges::find(result.merged_rows, j) != result.merged_rows.end()) continue;
    append(present.votes[static_cast<size_t>(j)], present.keys.row(j), present.values.row(j));
  }
  for (const OpenGroup& group : merge.groups) {
    for (int64_t j = 0; j < group.members.keys.rows(); ++j) {
      append(group.members.votes[static_cast<size_t>(j)], group.members.keys.row(j),
             group.members.values.row(j));
      result.member_keys.append_row(group.members.keys.row(j));
    }
  }
  return result;
}

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
    const Matrix with_members = attend(queries, merge.before, layer_.scale).output;
    const Matrix with_merged = attend(queries, after, layer_.scale).output;
    const std::optional<MergedKey> key = lossless_key(policy_, layer_.shape, rebuilt);
    std::vector<reference::MergedRows> rows;
    if (key) {
      for (const MergeGroup& group : *merge.groups) rows.push_back(rows_of(group, merge.before, after));
    }
    for (int64_t i = 0; i < group_size_; ++i) {
      MergeChange& change = changes_.emplace_back();
      change.step = step;
      change.query_head = kv_head_ * group_size_ + i;
      change.perturbation = distance(with_members.row(i), with_merged.row(i));
      if (!key) continue;
      change.rounding =
          reference::lossless_merge_error(queries.row(i), layer_.scale, *key, merge.before, after, rows);
    }
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

  OpenGroup open_group(const MergeGroup& group, const CacheEntries& before, const CacheEntries& after) const {
    OpenGroup opened;
    opened.into = group.into;
    const reference::MergedRows rows = rows_of(group, before, after);
    for (const int64_t row : rows.members) {
      opened.members.keys.append_row(before.keys.row(row));
      opened.members.values.append_row(before.values.row(row));
      opened.members.votes.push_back(before.votes[static_cast<size_t>(row)]);
    }
    opened.members.log_scores = group.log_scores;
    for (int64_t i = 0; i < group.log_scores.rows(); ++i) {
      const VectorView log_scores = group.log_scores.row(i);
      opened.log_merged.push_back(reference::log_mean_score(opened.members.votes, log_scores));
      const reference::GroupMean mean = reference::group_mean(opened.members, log_scores);
      opened.value_apart.push_back(distance(mean.value, after.values.row(rows.merged)));
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
    const Matrix queries = queries_at(t);
    const Replaced replaced = replace(merge, present);
    const AttentionOutput before = attend(queries, replaced.cache, layer_.scale);
    const AttentionOutput now = attend(queries, present, layer_.scale);
    const Matrix member_logits = reference::attention_logits(queries, replaced.member_keys, layer_.scale);
    const Matrix merged_logits = reference::attention_logits(queries, replaced.merged_keys, layer_.scale);
    const auto members = static_cast<size_t>(replaced.member_keys.rows());
    for (int64_t i = 0; i < group_size_; ++i) {
      const int64_t h = kv_head_ * group_size_ + i;
      const VectorView weights = before.weights.row(i).last(members);
      double share = 0;
      for (const int64_t row : replaced.merged_rows) share += now.weights(i, row);
      later_->perturbation(t, h) = distance(before.output.row(i), now.output.row(i));
      later_->share(t, h) = share;
      later_->sag(t, h) = std::accumulate(weights.begin(), weights.end(), 0.0) - share;
      if (merge.groups.front().log_merged.empty()) continue;
      const double shift =
          merge.unit == ScoreKind::attention ? before.log_sum_exp[static_cast<size_t>(i)] : 0;
      later_->prediction_error(t, h) =
          prediction_error(merge, i, member_logits.row(i), merged_logits.row(i), shift);
      if (!votes()) continue;
      fill_bounds(merge, replaced, now.weights.row(i), i, t);
      judge(merge, replaced, present, now.weights.row(i), queries.row(i), i, t);
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

  // epsilon of one query head. shift: what its log scores are less than its logits.
  static double prediction_error(const OpenMerge& merge, int64_t head, VectorView member_logits,
                                 VectorView merged_logits, double shift) {
    std::vector<double> predicted, actual;
    size_t member = 0;
    for (size_t r = 0; r < merge.groups.size(); ++r) {
      const VectorView scores = merge.groups[r].members.log_scores.row(head);
      predicted.insert(predicted.end(), scores.begin(), scores.end());
      for (size_t j = 0; j < scores.size(); ++j) actual.push_back(member_logits[member++] - shift);
      predicted.push_back(merge.groups[r].log_merged[static_cast<size_t>(head)]);
      actual.push_back(merged_logits[r] - shift);
    }
    return reference::prediction_error(predicted, actual);
  }

  // sum_r A'_r ||v_r - v-_h||, or of the errors of these.
  static double weighted_sum(const OpenMerge& merge, const Replaced& replaced, VectorView weights,
                             const std::vector<double> OpenGroup::*figures, int64_t head) {
    double sum = 0;
    for (size_t r = 0; r < merge.groups.size(); ++r) {
      sum += weights[static_cast<size_t>(replaced.merged_rows[r])] *
             (merge.groups[r].*figures)[static_cast<size_t>(head)];
    }
    return sum;
  }

  void fill_bounds(const OpenMerge& merge, const Replaced& replaced, VectorView weights, int64_t i,
                   int64_t t) {
    const int64_t h = kv_head_ * group_size_ + i;
    const double error = later_->prediction_error(t, h), share = later_->share(t, h);
    later_->value_distance(t, h) = merge.distance;
    const double shared = reference::later_bound(error, merge.distance, share);
    later_->joint_bound(t, h) = shared + weighted_sum(merge, replaced, weights, &OpenGroup::value_apart, i);
    if (group_size_ > 1) return;
    later_->bound(t, h) = reference::later_bound(error, merge.distance);
    later_->shared_bound(t, h) = shared;
  }

  // Notes a violation. What rounding may have done is only looked at where there seems to be one.
  void judge(const OpenMerge& merge, const Replaced& replaced, const CacheEntries& present,
             VectorView weights, VectorView query, int64_t i, int64_t t) {
    const int64_t h = kv_head_ * group_size_ + i;
    const double perturbation = later_->perturbation(t, h);
    if (perturbation <= later_->joint_bound(t, h)) return;
    // Of log scores, predicted ones within 40 of them included (else epsilon is 1); twice that for weights.
    const MatrixView row(query.data(), 1, layer_.shape.head_dim);
    const reference::Arithmetic exact{.unit = 0, .smallest = 0x1p-1022, .exponential = 0, .rescalings = 0};
    constexpr double kOfDifferences = 0x1p-43;  // 8 roundings of numbers up to 40, at least
    double logit_error = 0;
    for (const CacheEntries* cache : {&replaced.cache, &present}) {
      const Matrix errors = reference::logit_errors(row, cache->keys, layer_.scale, exact);
      const double log_sum_error =
          reference::attention_errors(row, cache->keys, cache->values, layer_.scale, cache->votes, exact)
              .log_sum_exp[0];
      logit_error = std::max(logit_error,
                             2 * *std::ranges::max_element(errors.row(0)) + log_sum_error + kOfDifferences);
    }
    constexpr double kOwnRounding =
        0x1p-30;  // relative, more than rounding does to sums of nonnegative terms
    const double off = std::expm1(2 * logit_error) * (1 + kOwnRounding) + kOwnRounding * logit_error;
    const double error = later_->prediction_error(t, h);
    const double worst_error = error + (1 + error) * off + kOwnRounding * error;
    if (!(worst_error < 1)) return;  // nothing is claimed
    const double apart = weighted_sum(merge, replaced, weights, &OpenGroup::value_apart, i) +
                         weighted_sum(merge, replaced, weights, &OpenGroup::value_apart_error, i);
    const double bound =
        (reference::later_bound(worst_error, merge.distance, later_->share(t, h)) + apart) * (1 + off) +
        norm(reference::output_error(query, layer_.scale, replaced.cache)) +
        norm(reference::output_error(query, layer_.scale, present));
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
