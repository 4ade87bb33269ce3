// One KV head's compressed cache as a tested implementation's own choices made it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// What was kept, then every new entry, less those who left at earlier steps.
class ForcedCache {
 public:
  /// kept  ascending positions
  /// left  [steps]: who left after each step, -1 for nobody; empty for hosts that only grow
  ForcedCache(const traces::Layer& layer, int64_t kv_head, std::vector<int64_t> kept,
              std::vector<int64_t> left)
      : layer_(&layer), kv_head_(kv_head), kept_(std::move(kept)), left_(std::move(left)) {}

  /// Ascending positions as a step's queries find them: after the new entry came, before one leaves.
  std::vector<int64_t> residents(int64_t step) const {
    const auto before = std::min(left_.size(), static_cast<size_t>(step));
    std::vector<int64_t> gone(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(before));
    std::ranges::sort(gone);
    std::vector<int64_t> positions = kept_;
    for (int64_t t = 0; t <= step; ++t) positions.push_back(layer_->prompt_tokens + t);
    std::erase_if(positions, [&](int64_t position) { return std::ranges::binary_search(gone, position); });
    return positions;
  }

  /// Their keys or values, [entries, head_dim].
  Matrix keys(const std::vector<int64_t>& residents) const {
    return rows(layer_->keys.slice(kv_head_), residents);
  }
  Matrix values(const std::vector<int64_t>& residents) const {
    return rows(layer_->values.slice(kv_head_), residents);
  }

 private:
  static Matrix rows(MatrixView source, const std::vector<int64_t>& positions) {
    Matrix result(static_cast<int64_t>(positions.size()), source.cols);
    for (size_t i = 0; i < positions.size(); ++i) {
      std::ranges::copy(source.row(positions[i]), result.row(static_cast<int64_t>(i)).begin());
    }
    return result;
  }

  const traces::Layer* layer_;
  int64_t kv_head_;
  std::vector<int64_t> kept_, left_;
};

}  // namespace kvbound::sim
