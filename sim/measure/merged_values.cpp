#include "merged_values.hpp"

#include <algorithm>
#include <optional>

#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/merging/cam.hpp>
#include <kvbound/reference/merging/merge_effect.hpp>
#include <kvbound/reference/merging/value_weights.hpp>

namespace kvbound::sim {

using reference::CacheEntries;
using reference::CacheMerge;

MergedValues::MergedValues(const traces::Layer& layer, const LayerRecord& record, int64_t kv_head)
    : values_(layer.values.slice(kv_head)),
      record_(record),
      cache_(layer.keys.slice(kv_head), values_, layer.prompt_tokens, kv_head, record.prompt) {
  if (cache_.prompt_merge()) merge(*cache_.prompt_merge());
}

const CacheEntries& MergedValues::at(int64_t step) {
  for (; entered_ <= step; ++entered_) {
    if (entered_ > 0) {
      if (const auto merged = cache_.evict(record_.steps[entered_ - 1])) merge(*merged);
    }
    const StepRecord& next = record_.steps[entered_];
    if (next.rebuilt) sums_.clear();
    if (const auto merged = cache_.enter(next)) merge(*merged);
  }
  return cache_.entries();
}

void MergedValues::add(VectorView attention, std::span<double> weights, std::span<double> rest) const {
  const std::vector<int64_t>& positions = cache_.entries().positions;
  for (size_t r = 0; r < positions.size(); ++r) {
    const auto found = sums_.find(positions[r]);
    if (found == sums_.end()) {
      weights[positions[r]] += attention[r];
      continue;
    }
    for (const auto& [position, weight] : found->second.weights) weights[position] += attention[r] * weight;
    for (size_t c = 0; c < rest.size(); ++c) rest[c] += attention[r] * found->second.rest[c];
  }
}

void MergedValues::merge(const CacheMerge& merge) {
  if (rules_of(*record_.merge).spread) return spread(merge);
  const CacheEntries& after = cache_.entries();
  for (const MergeCluster& cluster : *merge.clusters) {
    const reference::MergedCluster merged = reference::merged_cluster(cluster, merge.before, after);
    const std::vector<double> weights =
        reference::value_weights(*record_.merge, merged.members, after.values.row(merged.row));
    Sum sum;
    accumulate(sum, cluster.into, weights.front());
    for (size_t i = 0; i < cluster.from.size(); ++i) accumulate(sum, cluster.from[i], weights[i + 1]);
    put(cluster.into, std::move(sum));
  }
}

// CaM: every member's value was added, in equal shares, to the entries that follow it. At the prompt's end
// members are original entries; later they may have shares of others.
void MergedValues::spread(const CacheMerge& merge) {
  const CacheEntries& after = cache_.entries();
  std::map<int64_t, Sum> changed;
  for (const MergeCluster& cluster : *merge.clusters) {
    for (const int64_t position : cluster.from) {
      const std::vector<int64_t> shared = reference::following_entries(
          after.positions, position, rules_of(*record_.merge).spread->neighbours);
      for (const int64_t entry : shared) {
        const int64_t into = after.positions[entry];
        Sum& sum = changed[into];
        if (sum.weights.empty()) accumulate(sum, into, 1);
        accumulate(sum, position, 1 / static_cast<double>(shared.size()));
      }
    }
  }
  for (auto& [position, sum] : changed) put(position, std::move(sum));
}

// Adds an entry that was in the cache before the merge.
void MergedValues::accumulate(Sum& sum, int64_t position, double weight) const {
  const auto found = sums_.find(position);
  if (found == sums_.end()) {
    sum.weights.emplace_back(position, weight);
    return;
  }
  for (const auto& [original, own] : found->second.weights) sum.weights.emplace_back(original, weight * own);
}

void MergedValues::put(int64_t position, Sum sum) {
  const CacheEntries& after = cache_.entries();
  const VectorView value = after.values.row(after.row_of(position));
  sum.rest.assign(value.begin(), value.end());
  for (const auto& [original, weight] : sum.weights) {
    const VectorView own = values_.row(original);
    for (size_t c = 0; c < sum.rest.size(); ++c) sum.rest[c] -= weight * own[c];
  }
  sums_[position] = std::move(sum);
}

}  // namespace kvbound::sim
