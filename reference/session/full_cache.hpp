// All entries that ever were of one layer, kept outside the compressed cache so that it can be rebuilt.
#pragma once

#include <vector>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// A copy of a prompt's entries and of all that came since: 2 kv_heads entries head_dim numbers, twice that while layer() is
/// in use.
class FullCache {
 public:
  /// layer  what else it views outlives the cache
  explicit FullCache(const LayerView& layer);

  /// One decode step's entries; its queries are the last from now on. The step fits the layer.
  void append(const StepView& view);

  /// The layer as if its prompt went on to the last step, whose queries are the only recorded ones. Valid until the next
  /// call of either.
  LayerView layer();

 private:
  LayerView layer_;
  std::vector<Matrix> keys_, values_;  // [kv_heads] of [entries, head_dim]
  Matrix queries_;                     // [query_heads, head_dim]
  Tensor all_keys_, all_values_;       // [kv_heads, entries, head_dim]
};

}  // namespace kvbound::reference
