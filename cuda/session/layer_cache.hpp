// A layer's compressed cache in device memory: its rows, and which entries they hold.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/session.hpp>

#include "layer_scores.hpp"
#include "prompt_selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The cache of all KV heads of a layer.
template <Storage T>
class LayerCache {
 public:
  /// The capacity of a cache that is filled with at most `entries` entries per KV head.
  ///
  /// evicts  whether the host evicts an entry for every one that enters; if not the cache grows when it is full
  static int64_t capacity_for(int64_t entries, bool evicts) { return entries + (evicts ? 1 : kRoom); }

  /// Fills the cache with a layer's kept entries.
  ///
  /// kept     its list of positions is taken over: it has the capacity of the cache
  /// growing  whether the cache grows when it is full; positions are then not recorded
  void fill(const DeviceLayer<T>& layer, KeptEntries& kept, bool growing, Queue& queue);

  /// Appends a decode step's entries.
  ///
  /// keys, values  [kv_heads, 1, head_dim]
  /// position      of the entries
  void append(DeviceTensor<const T> keys, DeviceTensor<const T> values, int64_t position, Queue& queue);

  CacheView<T> view() const { return {keys_.view(), values_.view(), entries_.data(), nullptr}; }
  CacheSlots slots() {
    return {kv_heads_,    keys_.rows(),   entries_.data(),
            free_.data(), newest_.data(), growing_ ? nullptr : positions_.data()};
  }
  int64_t capacity() const { return keys_.rows(); }

 private:
  static constexpr int64_t kRoom = 256;

  void grow(Queue& queue);

  int64_t kv_heads_ = 0;
  bool growing_ = false;
  int64_t most_entries_ = 0;                 // of a KV head
  StoredTensor<T> keys_, values_;            // [kv_heads, capacity, head_dim]
  Buffer<int64_t> entries_, free_, newest_;  // [kv_heads]
  Buffer<int64_t> positions_;                // [kv_heads, capacity]
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
