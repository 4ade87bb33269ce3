#include "head_cache.hpp"

#include <algorithm>

namespace kvbound::reference {

void HeadCache::reserve(int64_t entries, int64_t head_dim) {
  positions.reserve(static_cast<size_t>(entries));
  keys.reserve(entries, head_dim);
  values.reserve(entries, head_dim);
}

int64_t HeadCache::find(int64_t position) const {
  const auto found = std::ranges::find(positions, position);
  return found == positions.end() ? -1 : found - positions.begin();
}

void HeadCache::append(int64_t position, VectorView key, VectorView value) {
  positions.push_back(position);
  keys.append_row(key);
  values.append_row(value);
  if (!votes.empty()) votes.push_back(1);
}

void HeadCache::remove(int64_t entry) {
  const int64_t last = entries() - 1;
  positions[entry] = positions.back();
  positions.pop_back();
  if (!votes.empty()) {
    votes[entry] = votes.back();
    votes.pop_back();
  }
  for (Matrix* rows : {&keys, &values}) {
    std::ranges::copy(rows->row(last), rows->row(entry).begin());
    rows->drop_last_row();
  }
}

}  // namespace kvbound::reference
