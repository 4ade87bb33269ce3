#include "head_merging.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/cam.hpp>
#include <kvbound/reference/merging/merge_baselines.hpp>
#include <kvbound/reference/merging/weighted_mean.hpp>
#include <kvbound/reference/numerics/columns.hpp>

namespace kvbound::reference {
namespace {

// [group_size, head_dim]
MatrixView last_queries(const LayerView& layer, int64_t kv_head) {
  if (layer.window_queries() == 0) throw ShapeMismatch("no prompt query is recorded to merge for");
  return layer.shape.group_rows(layer.queries.row_of_slices(layer.window_queries() - 1), kv_head);
}

// Merges every cluster with weights that are computed from the members' keys alone, without votes.
std::vector<MergedEntry> merged_by_keys(const MergingCache& cache,
                                        std::span<const std::vector<int64_t>> clusters,
                                        std::vector<double> (*weights_of)(MatrixView keys)) {
  std::vector<MergedEntry> merged;
  for (const std::vector<int64_t>& cluster : clusters) {
    const Matrix keys = rows_of(cache.keys, cluster), values = rows_of(cache.values, cluster);
    const std::vector<double> weights = weights_of(keys);
    merged.push_back({weighted_mean(weights, keys), weighted_mean(weights, values), 1, {}, {}});
  }
  return merged;
}

// Merges every cluster into one entry, by the policy's method.
struct ClusterMerging {
  const MergingCache& cache;
  std::span<const std::vector<int64_t>> clusters;
  // The last queries of the group's heads, and per head ln D_h, by which the heads' weights are normalised.
  MatrixView queries;
  double scale;
  const std::vector<double>& log_denominators;

  std::vector<MergedEntry> operator()(const KeepKv& options) const {
    return keep_kv(cache, clusters,
                   {{options.key, options.gqa, options.rank}, queries, scale, log_denominators});
  }
  std::vector<MergedEntry> operator()(const ConvexMerge& options) const {
    std::vector<MergedEntry> merged =
        keep_kv(cache, clusters, {{MergedKey::convex, options.gqa, 0}, queries, scale, log_denominators});
    for (MergedEntry& entry : merged) entry.votes = 1;
    return merged;
  }
  std::vector<MergedEntry> operator()(const D2o&) const {
    return merged_by_keys(cache, clusters, similarity_weights);
  }
  std::vector<MergedEntry> operator()(const KvMerger&) const {
    return merged_by_keys(cache, clusters, gaussian_weights);
  }
  std::vector<MergedEntry> operator()(const NoMerge&) const { return none(); }
  std::vector<MergedEntry> operator()(const Cam&) const { return none(); }

 private:
  // For methods that form no clusters.
  std::vector<MergedEntry> none() const {
    assert(clusters.empty());
    return {};
  }
};

void count(const ZipScale& zip, MergeCounts& counts) {
  ++counts.clusters;
  counts.singular += zip.singular;
  counts.negative += zip.negative();
  counts.far += zip.far();
}

}  // namespace

HeadMerging::HeadMerging(const Merge& merge, const LayerView& layer, int64_t kv_head)
    : merge_(merge),
      rules_(rules_of(merge)),
      kv_head_(kv_head),
      group_size_(layer.shape.group_size()),
      scale_(layer.scale),
      prediction_(rules_.prediction, group_size_) {}

HeadMerge HeadMerging::compress(const LayerView& layer, MergeTargets targets, const ScoreEma* known,
                                HeadCache& cache) {
  const MatrixView keys = layer.keys.slice(kv_head_), values = layer.values.slice(kv_head_);
  prediction_.begin(known, targets.kept, layer.prompt_tokens());
  HeadMerge record;
  if (rules_.spread) {
    const Matrix logits = attention_logits(last_queries(layer, kv_head_), keys, scale_);
    record = spread_leaving(*rules_.spread, kv_head_, mean_attention(logits), values, cache);
  }
  merge_clusters(layer, targets, known, cache, record);
  if (rules_.target) key_norms_ = key_norms(cache.keys);
  record.counts.leaving = layer.prompt_tokens() - std::ssize(targets.kept);
  record.votes = cache.votes.empty() ? std::vector<double>(targets.kept.size(), 1.0) : cache.votes;
  record.positions = std::move(targets.kept);
  record.target_of = std::move(targets.target_of);
  record.keys = cache.keys;
  record.values = cache.values;
  return record;
}

// Merges all clusters at once, for the layer's last query.
void HeadMerging::merge_clusters(const LayerView& layer, MergeTargets& targets, const ScoreEma* known,
                                 HeadCache& cache, HeadMerge& record) {
  if (targets.clusters.empty()) return;
  const Matrix scores = scores_of(layer, known);
  std::vector<std::vector<int64_t>>
      clusters;  // positions, which are rows of the layer; the kept entry's first
  for (const MergeCluster& cluster : targets.clusters) {
    clusters.push_back({cluster.into});
    clusters.back().insert(clusters.back().end(), cluster.from.begin(), cluster.from.end());
  }
  const MergingCache entries{layer.keys.slice(kv_head_), layer.values.slice(kv_head_), {}, scores};
  const std::vector<MergedEntry> merged =
      merged_entries(entries, clusters, last_queries(layer, kv_head_), log_denominators(scores, {}));
  for (size_t i = 0; i < merged.size(); ++i) {
    MergeCluster& cluster = targets.clusters[i];
    cluster.log_scores = columns_of(scores, clusters[i]);
    put(std::ranges::lower_bound(targets.kept, cluster.into) - targets.kept.begin(), merged[i], cache);
    count(merged[i].zip, record.counts);
    record.counts.merged += std::ssize(cluster.from);
    record.clusters.push_back(std::move(cluster));
  }
}

void HeadMerging::enter(const HeadCache& cache) {
  prediction_.enter();
  if (!rules_.target) return;
  key_norms_.push_back(key_norms(cache.keys.view().middle_rows(cache.entries() - 1, 1)).front());
}

void HeadMerging::observe(MatrixView queries, const HeadCache& cache, int64_t tokens) {
  const bool predicts = rules_.prediction.has_value();
  if (!predicts && !rules_.spread) return;
  logits_ = attention_logits(queries, cache.keys, scale_);
  if (predicts) prediction_.observe(logits_, cache.votes, tokens);
}

HeadMerging::EvictedMerge HeadMerging::merge(int64_t leaving, MatrixView queries, HeadCache& cache,
                                             std::optional<int64_t> into) {
  if (rules_.spread) return spread(leaving, cache, into);
  EvictedMerge merged;
  HeadMerge& record = merged.record;
  record.counts.leaving = 1;
  const NearestKey nearest = target(leaving, cache, into);
  if (nearest.index < 0) return merged;
  const std::vector<int64_t> entries{nearest.index, leaving};
  const Matrix keys = rows_of(cache.keys, entries), values = rows_of(cache.values, entries),
               scores = prediction_.of(entries);
  std::vector<double> votes;
  if (!cache.votes.empty()) {
    for (const int64_t entry : entries) votes.push_back(cache.votes[entry]);
  }
  const auto position_of = [&](int64_t entry) { return cache.positions[entry]; };
  merged.into = position_of(nearest.index);
  merged.changed = {nearest.index};
  record.clusters.push_back({merged.into, {position_of(leaving)}, scores});
  const std::vector<std::vector<int64_t>> both{{0, 1}};
  const MergedEntry entry =
      merged_entries({keys, values, votes, scores}, both, queries,
                     log_denominators(weighs_heads() ? prediction_.all() : Matrix(), cache.votes))
          .front();
  put(nearest.index, entry, cache);
  count(entry.zip, record.counts);
  record.counts.merged = 1;
  record.positions = {merged.into};
  record.votes = {entry.votes};
  record.keys.append_row(entry.key);
  record.values.append_row(entry.value);
  return merged;
}

// The entry that the evicted one merges with; index -1: none.
NearestKey HeadMerging::target(int64_t leaving, const HeadCache& cache, std::optional<int64_t> into) const {
  if (into) return {cache.find(*into), 0};
  const NearestKey nearest = nearest_key(leaving, cache.keys, key_norms_, cache.positions);
  return is_similar(nearest.cosine, *rules_.target) ? nearest : NearestKey{};
}

void HeadMerging::leave(int64_t entry) {
  prediction_.leave(entry);
  if (key_norms_.empty()) return;
  key_norms_[entry] = key_norms_.back();
  key_norms_.pop_back();
}

// ln s^ of all entries of a prompt or a full cache,
// [group_size, entries]; no columns for methods that predict no scores.
Matrix HeadMerging::scores_of(const LayerView& layer, const ScoreEma* known) const {
  const auto options = rules_.prediction;
  if (!options) return Matrix(group_size_, 0);
  if (known && options->predict == Prediction::ema) return known->log_predicted(layer.prompt_tokens());
  return attention_logits(last_queries(layer, kv_head_), layer.keys.slice(kv_head_), scale_);
}

// ln D_h of the cache before the merge; empty unless the group's heads weight the
// values jointly (weighs_heads).
std::vector<double> HeadMerging::log_denominators(MatrixView log_scores, VectorView votes) const {
  std::vector<double> denominators;
  if (!weighs_heads()) return denominators;
  const Matrix voted = votes.empty() ? Matrix() : voted_logits(log_scores, votes);
  for (int64_t h = 0; h < group_size_; ++h) {
    denominators.push_back(log_sum_exp(votes.empty() ? log_scores.row(h) : voted.view().row(h)));
  }
  return denominators;
}

// The merged entries of all clusters, by the policy's method.
std::vector<MergedEntry> HeadMerging::merged_entries(const MergingCache& entries,
                                                     std::span<const std::vector<int64_t>> clusters,
                                                     MatrixView queries,
                                                     const std::vector<double>& log_denominators) const {
  return std::visit(ClusterMerging{entries, clusters, queries, scale_, log_denominators}, merge_);
}

void HeadMerging::put(int64_t entry, const MergedEntry& merged, HeadCache& cache) {
  const int64_t index = entry;
  std::ranges::copy(merged.key, cache.keys.row(entry).begin());
  std::ranges::copy(merged.value, cache.values.row(entry).begin());
  if (votes()) {
    if (cache.votes.empty()) cache.votes.assign(cache.positions.size(), 1.0);
    cache.votes[index] = merged.votes;
  }
  if (!key_norms_.empty()) key_norms_[index] = key_norms(cache.keys.view().middle_rows(entry, 1)).front();
  if (!merged.log_scores.empty()) prediction_.replace(entry, merged.log_scores);
}

HeadMerging::EvictedMerge HeadMerging::spread(int64_t leaving, HeadCache& cache,
                                              std::optional<int64_t> into) const {
  EvictedMerge merged;
  const std::optional<bool> drawn = into ? std::optional(*into >= 0) : std::nullopt;
  merged.record =
      spread_entry(*rules_.spread, kv_head_, mean_attention(logits_), leaving, drawn, cache, merged.changed);
  merged.record.counts.leaving = 1;
  if (!merged.record.clusters.empty()) merged.into = merged.record.clusters.front().into;
  return merged;
}

}  // namespace kvbound::reference
