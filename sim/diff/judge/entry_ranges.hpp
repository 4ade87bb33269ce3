// Which successive entries of a cache an attention output lacks, or counts twice.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::sim {

/// Successive entries [first, last), and how often each counts: 0 or 2 times.
struct EntryRange {
  int64_t first = 0, last = 0;
  int times = 0;
};

/// Sums over the first entries of a cache, by which the output with any range of entries
/// changed is found at once:
///
///     output = (sum_j e_j v_j + (times - 1) sum_{j in range} e_j v_j) / the same of e_j
class RangedOutputs {
 public:
  /// weights  [tokens]: e_j, of any sum
  RangedOutputs(VectorView weights, MatrixView values);

  int64_t tokens() const { return static_cast<int64_t>(sums_.size()) - 1; }
  /// [head_dim]; not finite if no entry is left
  std::vector<double> output(const EntryRange& range) const;
  /// The range whose output is nearest to the claimed one: of all single entries; of ranges between a few
  /// places, and from there each end in turn at its best place. O(tokens head_dim) for each turn.
  EntryRange nearest(VectorView claimed, int times) const;

 private:
  double distance(VectorView claimed, const EntryRange& range) const;
  EntryRange nearest_pair(VectorView claimed, int times) const;

  std::vector<double> sums_;                  // [tokens + 1]
  std::vector<std::vector<double>> outputs_;  // [tokens + 1, head_dim]
};

}  // namespace kvbound::sim
