// The entries of one KV head's compressed cache.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// Entries in any order: a removed entry's place is taken by the last one, so that a
/// removal costs O(head_dim).
struct HeadCache {
  std::vector<int64_t> positions;
  Matrix keys;                ///< [entries, head_dim]
  Matrix values;              ///< [entries, head_dim]
  std::vector<double> votes;  ///< [entries]: how many entries each one stands for; empty: 1 for all

  int64_t entries() const { return std::ssize(positions); }
  /// Makes room for so many entries.
  void reserve(int64_t entries, int64_t head_dim);
  /// The entry at a position; -1 if there is none.
  int64_t find(int64_t position) const;
  void append(int64_t position, VectorView key, VectorView value);
  void remove(int64_t entry);
};

}  // namespace kvbound::reference
