// What the host `given` is told of one layer, by a file or by code of the caller's: kept sets, or scores.
// Format of files: traces/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "view.hpp"

namespace kvbound {

/// One KV head's cache in a decode step, when one of its entries has to be evicted.
struct EvictionView {
  int64_t kv_head = 0;
  std::span<const int64_t> positions;  ///< [entries], in no order; the step's own entry is the last
  MatrixView keys, values;             ///< [entries, head_dim]
  MatrixView weights;                  ///< [group_size, entries]: the step's attention weights
};

/// Kept sets or scores that were computed elsewhere.
struct GivenLayer {
  /// [kv_heads]: ascending positions that are kept; empty if entries have scores
  std::vector<std::vector<int64_t>> kept = {};
  std::vector<int64_t> always_kept = {};  ///< with scores: ascending positions
  Matrix score = {};                      ///< [kv_heads, n], finite; a larger one is kept
  Matrix head_score = {};  ///< [query_heads, n], finite; empty: every query head has its KV head's score

  /// The position to evict; empty: nothing is evicted during decoding. It is called for one KV head after the
  /// other, all steps of the first one first. Only the reference has it.
  std::function<int64_t(const EvictionView&)> evict = {};

  /// Whether it has kept sets, so that no entry is ranked.
  bool keeps() const { return !kept.empty(); }
};

}  // namespace kvbound
