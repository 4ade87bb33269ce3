#include "spreads.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "compaction.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

std::vector<int64_t> sizes_of(const std::vector<std::vector<int64_t>>& lists) {
  std::vector<int64_t> sizes;
  for (const std::vector<int64_t>& list : lists) sizes.push_back(std::ssize(list));
  return sizes;
}

// The evicted entries whose values were spread, grouped by the first kept entry that shares them.
void add_clusters(const std::vector<int64_t>& kept, int64_t tokens, std::span<const uint8_t> spread,
                  HeadMerge& record) {
  size_t next = 0, leaving = 0;
  for (int64_t position = 0; position < tokens; ++position) {
    if (next < kept.size() && kept[next] == position) {
      ++next;
      continue;
    }
    if (spread[leaving++] == 0) continue;
    ++record.counts.merged;
    if (record.clusters.empty() || record.clusters.back().into != kept[next]) {
      record.clusters.push_back({kept[next], {}, {}});
    }
    record.clusters.back().from.push_back(position);
  }
}

}  // namespace

template <Storage T>
Spreads<T>::Decoding::Decoding(const LayerShape& shape, int64_t capacity, int64_t most)
    : attention(shape.kv_heads, capacity),
      changed(shape.kv_heads, most),
      count(shape.kv_heads),
      merged_into(shape.kv_heads),
      positions(shape.kv_heads, most),
      changed_keys(shape.kv_heads, most, shape.head_dim),
      changed_values(shape.kv_heads, most, shape.head_dim) {}

template <Storage T>
std::vector<HeadMerge> Spreads<T>::compress(const SelectedLayer<T>& selected, LayerCache<T>& cache,
                                            Queue& queue) {
  const DeviceLayer<T>& layer = selected.layer;
  const int64_t heads = shape_.kv_heads, tokens = layer.prompt_tokens();
  PromptTargets targets(selected.kept, tokens, cache.capacity());
  const PositionLists leaving = targets.leaving(), kept = cache.filled();
  ScoredQuery<T> last(shape_, tokens);
  const Buffer<int64_t> all(std::span<const int64_t>(std::vector<int64_t>(heads, tokens)), queue.stream());
  DeviceMatrix attention(heads, tokens);
  queue.run("attention", [&] {
    last.attend(layer.last_queries(), {layer.keys, layer.values, all.data()}, scale_, queue);
    mean_attention(last.logits.data(), last.log_sum_exp.data(), shape_.query_heads, heads, tokens, all.data(),
                   attention.data(), queue.stream());
  });
  Buffer<uint8_t> spread(heads * leaving.stride);
  queue.run("merging", [&] {
    entries_left_out(kept, heads, tokens, leaving, queue.workspace(merge_targets_workspace(heads, tokens)),
                     queue.stream());
    const int64_t bytes = spread_leaving_workspace(heads, leaving.stride, kept.stride, shape_.head_dim);
    spread_leaving<T>(options_, attention.data(), leaving, kept, layer.values, cache.values(), spread.data(),
                      queue.status(), queue.workspace(bytes), queue.stream());
  });
  if (decodes_) decoding_.emplace(shape_, cache.capacity(), std::min(options_.neighbours, cache.capacity()));
  const std::vector<int64_t> counts = sizes_of(selected.kept);
  std::vector<Matrix> keys = cache.stored_keys().download(counts, queue.stream()),
                      values = cache.stored_values().download(counts, queue.stream());
  std::vector<uint8_t> is_spread(spread.size());
  spread.download(is_spread, queue.stream());
  queue.require_numbers("a merged value");
  std::vector<HeadMerge> records(heads);
  for (int64_t g = 0; g < heads; ++g) {
    HeadMerge& record = records[g];
    add_clusters(selected.kept[g], tokens, std::span(is_spread).subspan(g * leaving.stride, leaving.stride),
                 record);
    record.counts.leaving = tokens - counts[g];
    record.positions = selected.kept[g];
    record.votes.assign(counts[g], 1);
    record.keys = std::move(keys[g]);
    record.values = std::move(values[g]);
  }
  return records;
}

template <Storage T>
void Spreads<T>::observe(const ScoredQuery<T>& query, LayerCache<T>& cache, int64_t, Queue& queue) {
  mean_attention(query.logits.data(), query.log_sum_exp.data(), shape_.query_heads, shape_.kv_heads,
                 cache.capacity(), cache.slots().entries, decoding_->attention.data(), queue.stream());
}

template <Storage T>
void Spreads<T>::merge(DeviceTensor<const T>, LayerCache<T>& cache, Queue& queue) {
  Decoding& own = *decoding_;
  const PositionLists changed = own.changed_list();
  const CacheSlots slots = cache.slots();
  queue.run("merging", [&] {
    spread_entry<T>(options_, own.attention.data(), slots, cache.values(), changed, own.merged_into.data(),
                    queue.status(), queue.stream());
    const auto copy = [&](DeviceTensor<const T> from, StoredTensor<T>& to) {
      compact<T>(from, changed.positions, changed.stride, changed.count, to.view(), queue.stream());
    };
    copy(cache.keys(), own.changed_keys);
    copy(cache.values(), own.changed_values);
    compact_positions(slots, changed, own.positions.data(), queue.stream());
  });
}

template <Storage T>
StepMerges Spreads<T>::records(const std::vector<int64_t>& evicted, Queue& queue) {
  Decoding& own = *decoding_;
  const int64_t heads = shape_.kv_heads;
  StepMerges result{std::vector<int64_t>(heads), std::vector<HeadMerge>(heads)};
  own.merged_into.download(result.merged_into, queue.stream());
  std::vector<int64_t> counts(heads);
  own.count.download(counts, queue.stream());
  const std::vector<std::vector<int64_t>> positions = own.positions.download(counts, queue.stream());
  const std::vector<Matrix> keys = own.changed_keys.download(counts, queue.stream()),
                            values = own.changed_values.download(counts, queue.stream());
  for (int64_t g = 0; g < heads; ++g) {
    HeadMerge& record = result.merges[g];
    if (evicted[g] >= 0) record.counts.leaving = 1;
    if (counts[g] == 0) continue;
    record.counts.merged = 1;
    record.clusters.push_back({result.merged_into[g], {evicted[g]}, {}});
    // The changed entries are in the order of their slots; records are by position.
    std::vector<int64_t> order(counts[g]);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [&](int64_t i) { return positions[g][i]; });
    for (const int64_t i : order) {
      record.positions.push_back(positions[g][i]);
      record.votes.push_back(1);
      record.keys.append_row(keys[g].row(i));
      record.values.append_row(values[g].row(i));
    }
  }
  return result;
}

template class Spreads<float>;
template class Spreads<Float16>;
template class Spreads<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
