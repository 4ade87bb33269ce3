// All entries so far, for policies that rebuild the compressed cache from them.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include <kvbound/cuda/support/view.hpp>

#include "layer_cache.hpp"
#include "layer_scores.hpp"
#include "prompt_selection.hpp"
#include "queue.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// reference::FullCache in device memory: a cache in which every entry stays.
template <Storage T>
class FullCache {
 public:
  FullCache(const DeviceLayer<T>& layer, Queue& queue) : layer_(layer) {
    const int64_t tokens = layer.prompt_tokens();
    const std::vector<int64_t> budgets(layer.shape.kv_heads, tokens);
    std::vector<int64_t> positions(tokens);
    std::iota(positions.begin(), positions.end(), 0);
    KeptEntries all(budgets, LayerCache<T>::capacity_for(tokens, false), queue.stream());
    for (int64_t g = 0; g < layer.shape.kv_heads; ++g) all.positions.upload(g, 0, positions, queue.stream());
    entries_.fill(layer, all, true, false, 0, queue);
  }

  /// As LayerCache's.
  bool make_room(int64_t entries, Queue& queue) { return entries_.make_room(entries, queue); }
  void append(const StepInput<T>& step, Queue& queue) { entries_.append(step, nullptr, queue); }

  /// All entries so far as a layer whose only recorded queries are these.
  ///
  /// tokens   so far
  /// queries  [1, query_heads, head_dim]
  DeviceLayer<T> layer(int64_t tokens, DeviceTensor<const T> queries) {
    DeviceLayer<T> all = layer_;
    all.keys = entries_.keys();
    all.values = entries_.values();
    all.keys.rows = all.values.rows = tokens;
    all.queries = {queries.data, queries.rows, 1, queries.cols, queries.row_stride, queries.row_stride};
    return all;
  }

 private:
  DeviceLayer<T> layer_;  // of the prompt
  LayerCache<T> entries_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
