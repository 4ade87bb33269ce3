#include "merge_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/merge_errors.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/merging/merge_effect.hpp>
#include <kvbound/reference/merging/merged_cache.hpp>
#include <kvbound/reference/numerics/vectors.hpp>
#include <kvbound/reference/session/head_merging.hpp>

namespace kvbound::sim {
namespace {

using reference::CacheEntries;
using reference::CacheMerge;
using reference::MergedCluster;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

MergeCounts counts_of(const LayerRecord& record) {
  MergeCounts counts;
  for (const HeadMerge& merge : record.prompt.merges) counts += merge.counts;
  for (const StepRecord& step : record.steps) {
    for (const HeadMerge& merge : step.merges) counts += merge.counts;
  }
  return counts;
}

// The key rule by which a merge is lossless for the query that built it; nullopt if
// the merge is not lossless.
std::optional<MergedKey> lossless_key(const Policy& policy, const LayerShape& shape, bool rebuilt) {
  const MergeRules rules = rules_of(policy.merge);
  if (!rules.votes || shape.group_size() > 1 || (rules.averages() && !rebuilt)) return std::nullopt;
  switch (*rules.key) {
    case MergedKey::min_norm:
    case MergedKey::zip:
      return rules.key;
    case MergedKey::convex:
      return std::nullopt;
  }
  __builtin_unreachable();
}

// The properties of a merge. A rebuild merges by the step's own raw scores, whatever the
// policy predicts otherwise.
MergeKind kind_of(const Policy& policy, bool rebuilt) {
  const MergeRules rules = rules_of(policy.merge);
  return {rules.votes, rules.averages() && !rebuilt ? rules.prediction->scores : ScoreKind::raw};
}

// Follows one KV head's cache from the prompt's end on and measures its merges.
class HeadMerges {
 public:
  HeadMerges(const traces::Layer& layer, const LayerRecord& record, const Policy& policy, int64_t kv_head,
             LaterQueries* later, bool judged)
      : layer_(layer),
        record_(record),
        policy_(policy),
        judged_(judged),
        kv_head_(kv_head),
        group_size_(layer.shape.group_size()),
        later_(later),
        open_(layer.values.slice(kv_head), group_size_, layer.scale) {}

  void run() {
    reference::MergedCache cache(layer_.keys.slice(kv_head_), layer_.values.slice(kv_head_),
                                 layer_.prompt_tokens, kv_head_, record_.prompt);
    if (cache.prompt_merge()) accumulate(*cache.prompt_merge(), cache.entries(), -1, false);
    for (size_t i = 0; i < record_.steps.size(); ++i) {
      const StepRecord& step = record_.steps[i];
      const auto t = static_cast<int64_t>(i);
      if (step.rebuilt) open_.clear();
      if (const auto merge = cache.enter(step)) accumulate(*merge, cache.entries(), t, true);
      if (later_) measure_later(cache.entries(), t);
      const auto merge = cache.evict(step);
      if (!step.evicted.empty()) open_.close(step.evicted[kv_head_]);
      if (merge) accumulate(*merge, cache.entries(), t, false);
    }
  }

  std::vector<MergeChange> changes;
  std::vector<reference::ClusterChange> cluster_changes;
  std::vector<StepHead> violations;

 private:
  // The queries of all query heads of the group at a decode step; -1: the last prompt query.
  Matrix queries_at(int64_t step) const {
    Matrix queries;
    for (int64_t i = 0; i < group_size_; ++i) {
      queries.append_row(layer_.queries.slice(kv_head_ * group_size_ + i).row(layer_.window_queries + step));
    }
    return queries;
  }

  void accumulate(const CacheMerge& merge, const CacheEntries& after, int64_t step, bool rebuilt) {
    measure_change(merge, after, step, rebuilt);
    if (!later_) return;
    open_.open(merge, after, kind_of(policy_, rebuilt), layer_.prompt_tokens + step + 1);
    const reference::ClusterChanges measured(queries_at(step), layer_.scale, merge.before);
    for (const MergeCluster& cluster : *merge.clusters)
      cluster_changes.push_back(measured.of(cluster, after));
  }

  void measure_later(const CacheEntries& present, int64_t t) {
    const std::vector<StepHead> found = open_.measure(queries_at(t), present, layer_.prompt_tokens + t + 1, t,
                                                      kv_head_ * group_size_, *later_);
    if (judged_) violations.insert(violations.end(), found.begin(), found.end());
  }

  void measure_change(const CacheMerge& merge, const CacheEntries& after, int64_t step, bool rebuilt) {
    const Matrix queries = queries_at(step);
    std::vector<MergedCluster> clusters;
    for (const MergeCluster& cluster : *merge.clusters) {
      clusters.push_back(merged_cluster(cluster, merge.before, after));
    }
    const Matrix changed = rules_of(policy_.merge).spread
                               ? output_difference(queries, merge.before, after)
                               : merge_effect(queries, layer_.scale, after, clusters).change;
    const std::optional<MergedKey> key =
        judged_ ? lossless_key(policy_, layer_.shape, rebuilt) : std::nullopt;
    for (int64_t i = 0; i < group_size_; ++i) {
      MergeChange& change = changes.emplace_back();
      change.step = step;
      change.query_head = kv_head_ * group_size_ + i;
      change.perturbation = reference::norm(changed.row(i));
      if (!key) continue;
      change.rounding = reference::lossless_merge_error(queries.row(i), layer_.scale, *key, after, clusters);
    }
  }

  // The change of the outputs for CaM, whose changed entries belong to no cluster.
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

  const traces::Layer& layer_;
  const LayerRecord& record_;
  const Policy& policy_;
  bool judged_;
  int64_t kv_head_;
  int64_t group_size_;
  LaterQueries* later_;  // null: not requested
  OpenMerges open_;
};

Matrix undefined(int64_t steps, int64_t heads) {
  Matrix matrix(steps, heads);
  for (int64_t t = 0; t < steps; ++t) std::ranges::fill(matrix.row(t), kNan);
  return matrix;
}

}  // namespace

MergeMetrics measure_merges(const traces::Layer& layer, const LayerRecord& record, const Policy& policy,
                            bool later, bool judged) {
  MergeMetrics metrics;
  metrics.counts = counts_of(record);
  if (later && !rules_of(policy.merge).spread) {
    const Matrix matrix = undefined(std::ssize(record.steps), layer.shape.query_heads);
    metrics.later = LaterQueries{matrix, matrix, matrix, matrix, matrix, matrix, matrix, matrix, matrix, {}};
  }
  std::vector<HeadMerges> heads;
  for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
    heads.emplace_back(layer, record, policy, g, metrics.later ? &*metrics.later : nullptr, judged);
  }
  reference::parallel_for(layer.shape.kv_heads, [&](int64_t g) { heads[g].run(); });
  for (const HeadMerges& head : heads) {
    metrics.changes.insert(metrics.changes.end(), head.changes.begin(), head.changes.end());
    metrics.clusters.insert(metrics.clusters.end(), head.cluster_changes.begin(), head.cluster_changes.end());
    if (!metrics.later) continue;
    std::vector<StepHead>& all = metrics.later->violations;
    all.insert(all.end(), head.violations.begin(), head.violations.end());
  }
  if (metrics.later) {
    std::ranges::sort(metrics.later->violations, {},
                      [](const StepHead& at) { return std::pair(at.step, at.query_head); });
  }
  return metrics;
}

}  // namespace kvbound::sim
