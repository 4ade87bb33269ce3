// All entries of one layer, evicted ones included, kept outside the compressed cache
// so that it can be rebuilt.
#pragma once

#include <vector>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// A copy of the prompt's entries and of those of all decode steps:
/// 2 kv_heads entries head_dim numbers, twice as many while layer() is in use.
class FullCache {
 public:
  /// layer  its keys and values are copied; the other arrays that it views must outlive the cache
  explicit FullCache(const LayerView& layer);

  /// Appends one decode step's entries and replaces the recorded queries by the step's. The
  /// step must fit the layer.
  void append(const StepView& view);

  /// The layer as if its prompt had gone on to the last step, whose queries
  /// are the only recorded ones. Valid until the next call of append or layer.
  LayerView layer();

 private:
  LayerView layer_;
  std::vector<Matrix> keys_, values_;  // [kv_heads] of [entries, head_dim]
  Matrix queries_;                     // [query_heads, head_dim]
  Tensor all_keys_, all_values_;       // [kv_heads, entries, head_dim]
};

}  // namespace kvbound::reference
