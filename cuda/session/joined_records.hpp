// Records of steps that several layers or requests took together, divided among them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::cuda {

/// The s-th of `parts` parts of what a step recorded of each head.
template <class Each>
std::vector<Each> part_of(std::vector<Each>& all, size_t s, size_t parts) {
  const auto size = static_cast<std::ptrdiff_t>(all.size() / parts),
             first = static_cast<std::ptrdiff_t>(s) * size;
  return {std::move_iterator(all.begin() + first), std::move_iterator(all.begin() + first + size)};
}
inline StepRecord part_of(StepRecord& all, size_t s, size_t parts) {
  const int64_t rows = all.output.rows() / static_cast<int64_t>(parts);
  Matrix output = Matrix::for_overwrite(rows, all.output.cols());
  std::copy_n(all.output.row(static_cast<int64_t>(s) * rows).data(), output.numbers().size(), output.data());
  return {.output = std::move(output),
          .evicted = part_of(all.evicted, s, parts),
          .merged_into = part_of(all.merged_into, s, parts),
          .merges = part_of(all.merges, s, parts)};
}

/// Hands the records of all segments together over to each.
inline void divide(std::vector<StepRecord> records, std::span<SessionSteps> all) {
  for (size_t s = 0; s < all.size(); ++s) {
    all[s].records.clear();
    for (StepRecord& record : records) all[s].records.push_back(part_of(record, s, all.size()));
  }
}

}  // namespace kvbound::cuda
