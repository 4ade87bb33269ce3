#include "head_merging.hpp"

#include <algorithm>
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
  const int64_t group_size = layer.shape.group_size();
  return layer.queries.row_of_slices(layer.window_queries() - 1)
      .middle_rows(kv_head * group_size, group_size);
}

ClusterMembers members_of(MatrixView keys, MatrixView values, VectorView votes,
                          std::span<const int64_t> entries, Matrix log_scores) {
  ClusterMembers members;
  members.log_scores = std::move(log_scores);
  for (const int64_t entry : entries) {
    members.keys.append_row(keys.row(entry));
    members.values.append_row(values.row(entry));
    members.votes.push_back(votes.empty() ? 1 : votes[static_cast<size_t>(entry)]);
  }
  return members;
}

// By weights that the keys alone say.
MergedEntry without_votes(VectorView weights, const ClusterMembers& members) {
  return {weighted_mean(weights, members.keys), weighted_mean(weights, members.values), 1, {}, {}};
}

// Whether query heads that go each by its own scores weigh their values against each other.
bool weighs_heads(const Merge& merge) {
  return std::visit(
      []<class One>(const One& one) {
        if constexpr (requires { one.gqa; }) {
          return one.gqa == MergeGqa::joint;
        } else {
          return false;
        }
      },
      merge);
}

void count(const ZipScale& zip, MergeCounts& counts) {
  ++counts.clusters;
  counts.singular += zip.singular;
  counts.negative += zip.negative();
  counts.far += zip.far();
}

}  // namespace

std::optional<PredictedScores> prediction_of(const Merge& merge) {
  if (const auto* keep_kv = std::get_if<KeepKv>(&merge)) return keep_kv->prediction;
  if (const auto* convex = std::get_if<ConvexMerge>(&merge)) return convex->prediction;
  return std::nullopt;
}

std::optional<SimilarTarget> target_of(const Merge& merge) {
  return std::visit(
      []<class One>(const One& one) -> std::optional<SimilarTarget> {
        if constexpr (std::is_base_of_v<SimilarTarget, One>) {
          return one;
        } else {
          return std::nullopt;
        }
      },
      merge);
}

HeadMerging::HeadMerging(const Merge& merge, const LayerView& layer, int64_t kv_head)
    : merge_(merge),
      kv_head_(kv_head),
      group_size_(layer.shape.group_size()),
      scale_(layer.scale),
      prediction_(prediction_of(merge), group_size_) {}

HeadMerge HeadMerging::compress(const LayerView& layer, MergeTargets targets, const ScoreEma* known,
                                HeadCache& cache) {
  const MatrixView keys = layer.keys.slice(kv_head_), values = layer.values.slice(kv_head_);
  prediction_.begin(known, targets.kept, layer.prompt_tokens());
  HeadMerge record;
  if (const auto* cam = std::get_if<Cam>(&merge_)) {
    const Matrix logits = attention_logits(last_queries(layer, kv_head_), keys, scale_);
    record = spread_leaving(*cam, kv_head_, mean_attention(logits), values, cache);
  }
  if (!targets.clusters.empty()) {
    const Matrix scores = scores_of(layer, known);
    const auto queries = merge_queries(last_queries(layer, kv_head_), scores, {});
    for (MergeCluster& cluster : targets.clusters) {
      std::vector<int64_t> entries{cluster.into};
      entries.insert(entries.end(), cluster.from.begin(), cluster.from.end());
      cluster.log_scores = columns_of(scores, entries);
      const MergedEntry entry = merged(queries, members_of(keys, values, {}, entries, cluster.log_scores));
      put(std::ranges::lower_bound(targets.kept, cluster.into) - targets.kept.begin(), entry, cache);
      count(entry.zip, record.counts);
      record.counts.merged += std::ssize(cluster.from);
      record.clusters.push_back(std::move(cluster));
    }
  }
  if (target_of(merge_)) key_norms_ = key_norms(cache.keys);
  record.counts.leaving = layer.prompt_tokens() - std::ssize(targets.kept);
  record.votes = cache.votes.empty() ? std::vector<double>(targets.kept.size(), 1.0) : cache.votes;
  record.positions = std::move(targets.kept);
  record.keys = cache.keys;
  record.values = cache.values;
  return record;
}

void HeadMerging::enter(const HeadCache& cache) {
  prediction_.enter();
  if (!target_of(merge_)) return;
  key_norms_.push_back(key_norms(cache.keys.view().middle_rows(cache.entries() - 1, 1)).front());
}

void HeadMerging::observe(MatrixView queries, const HeadCache& cache, int64_t tokens) {
  const bool predicts = prediction_of(merge_).has_value();
  if (!predicts && !std::holds_alternative<Cam>(merge_)) return;
  logits_ = attention_logits(queries, cache.keys, scale_);
  if (predicts) prediction_.observe(logits_, cache.votes, tokens);
}

HeadMerging::Departure HeadMerging::merge(int64_t leaving, MatrixView queries, HeadCache& cache,
                                          std::optional<int64_t> into) {
  if (const auto* cam = std::get_if<Cam>(&merge_)) return spread(*cam, leaving, cache, into);
  Departure departure;
  HeadMerge& record = departure.record;
  record.counts.leaving = 1;
  const NearestKey nearest = target(leaving, cache, into);
  if (nearest.index < 0) return departure;
  const std::vector<int64_t> entries{nearest.index, leaving};
  const ClusterMembers members =
      members_of(cache.keys, cache.values, cache.votes, entries, prediction_.of(entries));
  const auto position_of = [&](int64_t entry) { return cache.positions[static_cast<size_t>(entry)]; };
  departure.into = position_of(nearest.index);
  departure.changed = {nearest.index};
  record.clusters.push_back({departure.into, {position_of(leaving)}, members.log_scores});
  const bool weighs = weighs_heads(merge_) && group_size_ > 1;
  const MergedEntry entry =
      merged(merge_queries(queries, weighs ? prediction_.all() : Matrix(), cache.votes), members);
  put(nearest.index, entry, cache);
  count(entry.zip, record.counts);
  record.counts.merged = 1;
  record.positions = {departure.into};
  record.votes = {entry.votes};
  record.keys.append_row(entry.key);
  record.values.append_row(entry.value);
  return departure;
}

// With whom a leaving entry merges; index -1: with nobody.
NearestKey HeadMerging::target(int64_t leaving, const HeadCache& cache, std::optional<int64_t> into) const {
  if (into) {
    const auto found = std::ranges::find(cache.positions, *into);
    return {found == cache.positions.end() ? -1 : found - cache.positions.begin(), 0};
  }
  const NearestKey nearest = nearest_key(leaving, cache.keys, key_norms_, cache.positions);
  return is_similar(nearest.cosine, *target_of(merge_)) ? nearest : NearestKey{};
}

void HeadMerging::leave(int64_t entry) {
  prediction_.leave(entry);
  if (key_norms_.empty()) return;
  key_norms_[static_cast<size_t>(entry)] = key_norms_.back();
  key_norms_.pop_back();
}

// ln s^ of all entries of a prompt or a full cache, [group_size, entries]; no columns for methods that predict nothing.
Matrix HeadMerging::scores_of(const LayerView& layer, const ScoreEma* known) const {
  const auto options = prediction_of(merge_);
  if (!options) return Matrix(group_size_, 0);
  if (known && options->predict == Prediction::ema) return known->log_predicted(layer.prompt_tokens());
  return attention_logits(last_queries(layer, kv_head_), layer.keys.slice(kv_head_), scale_);
}

// log_scores  of the cache before the merge; needed where heads weigh their values against each other
std::optional<MergeQueries> HeadMerging::merge_queries(MatrixView queries, MatrixView log_scores,
                                                       VectorView votes) const {
  std::vector<double> denominators;
  if (weighs_heads(merge_) && group_size_ > 1) {
    const Matrix voted = votes.empty() ? Matrix() : voted_logits(log_scores, votes);
    for (int64_t h = 0; h < group_size_; ++h) {
      denominators.push_back(log_sum_exp(votes.empty() ? log_scores.row(h) : voted.view().row(h)));
    }
  }
  if (const auto* keep_kv = std::get_if<KeepKv>(&merge_)) {
    return MergeQueries({keep_kv->key, keep_kv->gqa, keep_kv->rank}, queries, scale_,
                        std::move(denominators));
  }
  if (const auto* convex = std::get_if<ConvexMerge>(&merge_)) {
    return MergeQueries({MergedKey::convex, convex->gqa, 0}, queries, scale_, std::move(denominators));
  }
  return std::nullopt;
}

MergedEntry HeadMerging::merged(const std::optional<MergeQueries>& queries,
                                const ClusterMembers& members) const {
  if (std::holds_alternative<D2o>(merge_)) return without_votes(similarity_weights(members.keys), members);
  if (std::holds_alternative<KvMerger>(merge_)) return without_votes(gaussian_weights(members.keys), members);
  MergedEntry entry = merge_cluster(*queries, members);
  if (!votes()) entry.votes = 1;
  return entry;
}

void HeadMerging::put(int64_t entry, const MergedEntry& merged, HeadCache& cache) {
  const auto index = static_cast<size_t>(entry);
  std::ranges::copy(merged.key, cache.keys.row(entry).begin());
  std::ranges::copy(merged.value, cache.values.row(entry).begin());
  if (votes()) {
    if (cache.votes.empty()) cache.votes.assign(cache.positions.size(), 1.0);
    cache.votes[index] = merged.votes;
  }
  if (!key_norms_.empty()) key_norms_[index] = key_norms(cache.keys.view().middle_rows(entry, 1)).front();
  if (!merged.log_scores.empty()) prediction_.replace(entry, merged.log_scores);
}

HeadMerging::Departure HeadMerging::spread(const Cam& cam, int64_t leaving, HeadCache& cache,
                                           std::optional<int64_t> into) const {
  Departure departure;
  const std::optional<bool> drawn = into ? std::optional(*into >= 0) : std::nullopt;
  departure.record =
      spread_entry(cam, kv_head_, mean_attention(logits_), leaving, drawn, cache, departure.changed);
  departure.record.counts.leaving = 1;
  if (!departure.record.clusters.empty()) departure.into = departure.record.clusters.front().into;
  return departure;
}

}  // namespace kvbound::reference
