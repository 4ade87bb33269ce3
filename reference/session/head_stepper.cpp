#include "head_stepper.hpp"

#include <algorithm>
#include <utility>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/numerics/columns.hpp>

namespace kvbound::reference {

HeadStepper::HeadStepper(const LayerView& layer, const Policy& policy, int64_t kv_head, int64_t budget)
    : layer_(layer),
      policy_(policy),
      merge_rules_(rules_of(policy.merge)),
      kv_head_(kv_head),
      budget_(budget),
      newest_(layer.prompt_tokens() - 1) {}

void HeadStepper::fill(const LayerView& layer, const std::vector<int64_t>& kept) {
  constexpr int64_t kSteps = 256;  // for so many further entries, nothing is moved
  cache_ = {};
  cache_.reserve(std::ssize(kept) + kSteps, layer.shape.head_dim);
  for (const int64_t position : kept) {
    cache_.append(position, layer.keys.slice(kv_head_).row(position),
                  layer.values.slice(kv_head_).row(position));
  }
  newest_ = layer.prompt_tokens() - 1;
}

HeadMerge HeadStepper::merge(const LayerView& layer, MergeTargets targets, const ScoreEma* predicted) {
  merging_.emplace(policy_.merge, layer, kv_head_);
  return merging_->compress(layer, std::move(targets), predicted, cache_);
}

void HeadStepper::begin_evicting(const LayerView& layer, MatrixView head_scores, MatrixView prompt_norms) {
  eviction_.emplace(layer, policy_, kv_head_, budget_, head_scores, cache_norms(layer, prompt_norms), cache_);
}

// Projected norms of the cache's values, [group_size, entries]; empty unless evictions follow stage two.
Matrix HeadStepper::cache_norms(const LayerView& layer, MatrixView prompt_norms) const {
  const SelectionRules selection = rules_of(policy_.selection);
  if (!selection.in_decoding) return {};
  if (!merge_rules_.merges) return columns_of(prompt_norms, cache_.positions);
  const int64_t group_size = layer.shape.group_size();
  Matrix norms(group_size, cache_.entries());
  for (int64_t i = 0; i < group_size; ++i) {
    const MatrixView projection = layer.head_projection(kv_head_ * group_size + i);
    std::ranges::copy(projected_value_norms(cache_.values, projection, selection.two_stage->norm),
                      norms.row(i).begin());
  }
  return norms;
}

void HeadStepper::enter(int64_t position, VectorView key, VectorView value) {
  newest_ = position;
  cache_.append(position, key, value);
  if (!eviction_) return;
  eviction_->enter(cache_);
  if (merging_) merging_->enter(cache_);
}

Matrix HeadStepper::attend(MatrixView queries) {
  if (!eviction_) {
    return attention(queries, cache_.keys, cache_.values, layer_.scale, cache_.votes).output;
  }
  Matrix output = eviction_->attend(queries, cache_);
  if (merging_) merging_->observe(queries, cache_, newest_ + 1);
  return output;
}

std::optional<int64_t> HeadStepper::own_choice() const {
  return eviction_ ? eviction_->next_evicted(cache_, newest_) : std::nullopt;
}

EvictedEntry HeadStepper::evict(int64_t entry, MatrixView queries, std::optional<int64_t> into) {
  EvictedEntry evicted;
  evicted.position = cache_.positions[entry];
  if (merging_) {
    HeadMerging::EvictedMerge merged = merging_->merge(entry, queries, cache_, into);
    for (const int64_t changed : merged.changed) eviction_->revalue(changed, cache_);
    merging_->leave(entry);
    evicted.merged_into = merged.into;
    evicted.changed = std::move(merged.changed);
    evicted.merge = std::move(merged.record);
  }
  eviction_->remove(entry);
  cache_.remove(entry);
  return evicted;
}

void HeadStepper::replace(int64_t entry, double votes, VectorView key, VectorView value) {
  merging_->put(entry, {{key.begin(), key.end()}, {value.begin(), value.end()}, votes, {}, {}}, cache_);
  if (eviction_) eviction_->revalue(entry, cache_);
}

}  // namespace kvbound::reference
