// Caches whose entries lie in slots, for the tests of evictions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <kvbound/cuda/session/head_eviction.hpp>

#include "parity/support.hpp"

namespace kvbound::parity {

/// CacheSlots in device memory.
class Slots {
 public:
  /// positions  [kv_heads]: of each head's entries, by slot
  /// newest     [kv_heads]: slot of the newest entry
  Slots(const std::vector<std::vector<int64_t>>& positions, const std::vector<int64_t>& newest,
        int64_t capacity)
      : capacity_(capacity), newest_(cuda::upload(newest)) {
    std::vector<int64_t> entries, all(positions.size() * capacity, -5);
    for (size_t g = 0; g < positions.size(); ++g) {
      entries.push_back(std::ssize(positions[g]));
      std::ranges::copy(positions[g], all.begin() + static_cast<std::ptrdiff_t>(g) * capacity);
    }
    entries_ = cuda::upload(entries);
    positions_ = cuda::upload(all);
    free_ = cuda::upload(std::vector<int64_t>(positions.size(), -1));
  }

  cuda::CacheSlots view() {
    return {entries_.size(), capacity_, entries_.data(), free_.data(), newest_.data(), positions_.data()};
  }
  std::vector<int64_t> free() const { return cuda::download(free_); }
  /// Entries, free slots, newest slots and positions.
  std::vector<std::vector<int64_t>> contents() const {
    return {cuda::download(entries_), free(), cuda::download(newest_), cuda::download(positions_)};
  }

 private:
  int64_t capacity_;
  cuda::Buffer<int64_t> newest_, entries_, positions_, free_;
};

/// 0, 2, 4, ...
inline std::vector<int64_t> ascending(int64_t count) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(2 * i);
  return positions;
}

/// Positions in an order that is none of theirs.
inline std::vector<int64_t> shuffled(uint64_t seed, int64_t count) {
  std::vector<int64_t> positions = ascending(count);
  const Tensor random = random_tensor(seed, 1, 1, count);
  std::ranges::sort(positions, {}, [&](int64_t position) { return random.data()[position / 2]; });
  return positions;
}

}  // namespace kvbound::parity
