#include "spreads.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "compaction.hpp"
#include "joined_rows.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

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
void Spreads<T>::compress(const SelectedLayer<T>& selected, LayerCache<T>& cache, Queue& queue,
                          std::vector<HeadMerge>& records) {
  const DeviceLayer<T>& layer = selected.layer;
  const int64_t heads = shape_.kv_heads, tokens = layer.prompt_tokens();
  PromptTargets targets(selected.counts, tokens, cache.capacity());
  const PositionLists leaving = targets.leaving(), kept = cache.filled();
  ScoredQuery<T> last(shape_, tokens);
  DeviceMatrix outputs(shape_.query_heads, shape_.head_dim);
  const Buffer<int64_t> all(std::span<const int64_t>(std::vector<int64_t>(heads, tokens)), queue.stream());
  DeviceMatrix attention(heads, tokens);
  queue.run("attention", [&] {
    last.attend(layer.last_queries(), {layer.keys, layer.values, all.data()}, scale_, {}, outputs.data(),
                queue);
    mean_attention(last.logits.data(), last.log_sum_exp.data(), shape_.query_heads, heads, tokens, all.data(),
                   attention.data(), queue.stream());
  });
  Buffer<uint8_t> spread(heads * leaving.stride);
  queue.run("merging", [&] {
    entries_left_out(kept, heads, tokens, leaving, queue.workspace(merge_targets_workspace(heads, tokens)),
                     queue.stream());
    const int64_t bytes = spread_leaving_workspace(heads, leaving.stride, kept.stride, shape_.head_dim);
    spread_leaving<T>(options_, attention.data(), leaving, kept, layer.values, cache.values(), spread.data(),
                      queue.merge_status(), queue.workspace(bytes), queue.stream());
  });
  if (decodes_) decoding_.emplace(shape_, cache.capacity(), std::min(options_.neighbours, cache.capacity()));
  Readback& reads = queue.read_back();
  queue.require_numbers(reads, "score");
  reads.then([counts = selected.counts, tokens, stride = leaving.stride, &kept = selected.kept, &records,
              all_keys = reads.of(cache.stored_keys()), all_values = reads.of(cache.stored_values()),
              is_spread = reads.of(spread)](const Arrived& arrived) {
    std::vector<Matrix> keys = arrived.slices(all_keys, counts), values = arrived.slices(all_values, counts);
    records.resize(counts.size());
    for (size_t g = 0; g < records.size(); ++g) {
      HeadMerge& record = records[g];
      add_clusters(kept[g], tokens, arrived[is_spread].subspan(g * stride, stride), record);
      record.counts.leaving = tokens - counts[g];
      record.positions = kept[g];
      record.votes.assign(counts[g], 1);
      record.keys = std::move(keys[g]);
      record.values = std::move(values[g]);
    }
  });
  reads.fetch(queue.pool());
}

// A step's merges depend on nothing before it.
template <Storage T>
std::unique_ptr<Merges<T>> Spreads<T>::joined(std::span<Merges<T>* const> parts, int64_t capacity,
                                              Queue&) const {
  auto all = std::make_unique<Spreads>(*this, cuda::joined(shape_, std::ssize(parts)));
  all->decoding_.emplace(all->shape_, capacity, std::min(options_.neighbours, capacity));
  return all;
}

template <Storage T>
void Spreads<T>::observe(const StepInput<T>&, const ScoredQuery<T>& query, LayerCache<T>& cache,
                         Queue& queue) {
  mean_attention(query.logits.data(), query.log_sum_exp.data(), shape_.query_heads, shape_.kv_heads,
                 cache.capacity(), cache.slots().entries, decoding_->attention.data(), queue.stream());
}

template <Storage T>
void Spreads<T>::merge(const StepInput<T>&, const ScoredQuery<T>&, LayerCache<T>& cache, Queue& queue) {
  Decoding& own = *decoding_;
  const PositionLists changed = own.changed_list();
  const CacheSlots slots = cache.slots();
  queue.run("merging", [&] {
    spread_entry<T>(options_, own.attention.data(), slots, cache.values(), changed, own.merged_into.data(),
                    queue.merge_status(), queue.stream());
    const auto copy = [&](DeviceTensor<const T> from, StoredTensor<T>& to) {
      compact<T>(from, changed.positions, changed.stride, changed.count, to.view(), queue.stream());
    };
    copy(cache.keys(), own.changed_keys);
    copy(cache.values(), own.changed_values);
    compact_positions(slots, changed, own.positions.data(), queue.stream());
  });
}

template <Storage T>
void Spreads<T>::record(Readback& reads, StepRecord& record) const {
  const Decoding& own = *decoding_;
  reads.then([&record, merged_into = reads.of(own.merged_into), all_counts = reads.of(own.count),
              all_positions = reads.of(own.positions), all_keys = reads.of(own.changed_keys),
              all_values = reads.of(own.changed_values)](const Arrived& arrived) {
    record.merged_into.assign(arrived[merged_into].begin(), arrived[merged_into].end());
    if (record.rebuilt) return;
    const std::span<const int64_t> counts = arrived[all_counts];
    const std::vector<std::vector<int64_t>> positions = arrived.lists(all_positions, counts);
    const std::vector<Matrix> keys = arrived.slices(all_keys, counts),
                              values = arrived.slices(all_values, counts);
    record.merges.resize(counts.size());
    for (size_t g = 0; g < counts.size(); ++g) {
      HeadMerge& merge = record.merges[g];
      if (record.evicted[g] >= 0) merge.counts.leaving = 1;
      if (counts[g] == 0) continue;
      merge.counts.merged = 1;
      merge.clusters.push_back({record.merged_into[g], {record.evicted[g]}, {}});
      // The changed entries are in the order of their slots; records are by position.
      std::vector<int64_t> order(counts[g]);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::sort(order, {}, [&](int64_t i) { return positions[g][i]; });
      for (const int64_t i : order) {
        merge.positions.push_back(positions[g][i]);
        merge.votes.push_back(1);
        merge.keys.append_row(keys[g].row(i));
        merge.values.append_row(values[g].row(i));
      }
    }
  });
}

template class Spreads<float>;
template class Spreads<Float16>;
template class Spreads<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
