// What a file of the host `given` says of one layer: kept sets, or scores. Format: traces/README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "view.hpp"

namespace kvbound {

/// Kept sets or scores that were computed elsewhere.
struct GivenLayer {
  /// [kv_heads]: ascending positions that are kept; empty if entries have scores
  std::vector<std::vector<int64_t>> kept = {};
  std::vector<int64_t> always_kept = {};  ///< with scores: ascending positions
  Matrix score = {};                      ///< [kv_heads, n], finite; a larger one is kept
  Matrix head_score = {};  ///< [query_heads, n], finite; empty: every query head has its KV head's score

  /// Whether it has kept sets, so that no entry is ranked.
  bool keeps() const { return !kept.empty(); }
};

}  // namespace kvbound
