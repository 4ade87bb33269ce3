// The choices that a teacher-forced replay of a layer followed: the tested implementation's, or the
// reference's where these are not recorded or cannot be followed.
#pragma once

#include <cstdint>
#include <vector>

namespace kvbound::sim {

/// What a replay followed at one decode step. Where there is no such choice the list is empty.
struct FollowedStep {
  std::vector<int64_t> evicted;      ///< [kv_heads], for hosts that evict
  std::vector<int64_t> merged_into;  ///< [kv_heads], for hosts that evict and policies that merge
  /// [kv_heads], of a rebuild before the step: kept positions and targets.
  std::vector<std::vector<int64_t>> kept = {}, target_of = {};
  std::vector<int64_t> rebuilt_rows = {};  ///< [kv_heads]: rows of the claims on the rebuilt cache

  bool rebuilt() const { return !kept.empty(); }
};

/// Equal choices mean equal caches, but for the rounding of merged entries.
struct FollowedChoices {
  std::vector<std::vector<int64_t>> kept;  ///< [kv_heads]: after the prompt
  std::vector<std::vector<int64_t>>
      target_of;                    ///< [kv_heads], for policies that form clusters; otherwise empty
  std::vector<FollowedStep> steps;  ///< empty where no claim depends on them
};

}  // namespace kvbound::sim
