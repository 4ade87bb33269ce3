// Where the caches of two implementations of one policy hold different entries,
// because they chose differently.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/sim/diff/claims/followed_choices.hpp>

namespace kvbound::sim {

/// Whether caches differ in what was chosen; the rounding of merged entries does not count.
struct DifferingCaches {
  std::vector<bool> kept;    ///< [kv_heads]: the entries kept after the prompt
  std::vector<bool> prompt;  ///< [kv_heads]: those or their clusters
  /// [steps, kv_heads]: the entries that the step's queries attended to. Where entries merge,
  /// any earlier choice counts.
  std::vector<bool> attended;
  std::vector<bool> history;  ///< [steps, kv_heads]: any choice since the prompt's end or the last rebuild
  std::vector<bool> left;     ///< [steps, kv_heads]: that, or the step's eviction
  std::vector<bool> merged;   ///< [steps, kv_heads]: that, or the step's merge
  /// [rebuilds, kv_heads]: kept entries or clusters of a rebuild, which ends earlier differences
  std::vector<bool> rebuilt;
};

/// Over the steps that both replays have.
DifferingCaches differing_caches(const FollowedChoices& a, const FollowedChoices& b);

}  // namespace kvbound::sim
