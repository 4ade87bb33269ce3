// A layer's compressed cache in device memory: its rows, and which entries they hold.
#pragma once

#include <cstdint>
#include <span>

#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/session.hpp>

#include "append.hpp"
#include "cache_pages.hpp"
#include "layer_scores.hpp"
#include "prompt_selection.hpp"
#include "step_inputs.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The cache of all KV heads of a layer, or of several layers or requests.
template <Storage T>
class LayerCache {
 public:
  /// At least so many entries more than it is filled with fit into a cache that grows, before it has to.
  static constexpr int64_t kRoom = 256;

  /// The capacity of a cache that is filled with at most `entries` entries per KV head: whole pages, or a
  /// multiple of eight, so that what a head has of single-precision numbers begins with a sector of memory.
  ///
  /// evicts     whether the host evicts an entry for every one that enters; if not the
  ///            cache grows when it is full
  /// page_size  rows; 0: a KV head's rows lie one behind the other
  static int64_t capacity_for(int64_t entries, bool evicts, int64_t page_size = 0) {
    return round_up(entries + (evicts ? 1 : kRoom), page_size > 0 ? page_size : 8);
  }

  LayerCache() = default;
  /// Copies of filled caches, one behind the other.
  LayerCache(std::span<LayerCache* const> parts, Queue& queue);

  /// Fills the cache with a layer's kept entries.
  ///
  /// kept       its list of positions is taken over: it has the capacity of the cache
  /// growing    whether the cache grows when it is full; positions are then not recorded
  /// votes      whether entries may come to stand for several
  /// page_size  as in capacity_for
  void fill(const DeviceLayer<T>& layer, KeptEntries& kept, bool growing, bool votes, int64_t page_size,
            Queue& queue);

  /// Makes room for so many more entries than room was made for before, where the host evicts none. Whether
  /// the cache's memory is another one then.
  bool make_room(int64_t entries, Queue& queue);
  /// Appends a decode step's entries, for which there is room.
  ///
  /// key_norms  [kv_heads, capacity]: receives the keys' lengths; null: they are not kept
  void append(const StepInput<T>& step, float* key_norms, Queue& queue);
  /// The entries of a step, for an eviction that appends them.
  NewEntries new_entries(const StepInput<T>& step);

  CacheView<T> view() const {
    return {keys_.view(), values_.view(), entries_.data(), log_votes_.data(), segments_, pages_.view()};
  }
  CacheSlots slots() {
    return {kv_heads_,     capacity(),        entries_.data(),
            free_.data(),  newest_.data(),    growing_ ? nullptr : positions_.data(),
            votes_.data(), log_votes_.data(), segments_,
            pages_.view()};
  }
  /// [kv_heads, capacity, head_dim], of a cache without pages; likewise values().
  DeviceTensor<T> keys() { return keys_.view(); }
  DeviceTensor<T> values() { return values_.view(); }
  const StoredTensor<T>& stored_keys() const { return keys_; }
  const StoredTensor<T>& stored_values() const { return values_; }
  /// [kv_heads, capacity]; empty if all entries stand for one.
  const DeviceMatrix& votes() const { return votes_; }
  /// The positions with which the cache was filled, until an entry is appended.
  PositionLists filled() { return {positions_.data(), entries_.data(), positions_.stride()}; }
  int64_t capacity() const { return view().capacity(); }

 private:
  void allocate_rows(int64_t capacity, int64_t page_size, int64_t head_dim, Stream stream);
  void put_rows(const LayerCache& part, int64_t first_head, Stream stream);
  void grow(int64_t capacity, Queue& queue);

  int64_t kv_heads_ = 0;
  int64_t segments_ = 1;  // layers or requests
  bool growing_ = false;
  int64_t most_entries_ = 0;  // of a KV head, with those that room was made for
  CachePages pages_;
  StoredTensor<T> keys_, values_;            // [kv_heads, capacity, head_dim], [pages, page_size, head_dim]
  Buffer<int64_t> entries_, free_, newest_;  // [kv_heads]
  IndexLists positions_;                     // [kv_heads, capacity]
  DeviceMatrix votes_, log_votes_;           // [kv_heads, capacity], or empty
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
