// Judges which entry an entry evicted while decoding merged with.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/eviction/head_cache.hpp>

#include "choice.hpp"
#include "merged_errors.hpp"
#include "spread_rule.hpp"

namespace kvbound::sim {

/// An entry that is about to be evicted from one KV head's cache.
struct LeavingEntry {
  ChoicePlace at;
  int64_t entry = 0;  ///< index in the cache
  const reference::HeadCache& cache;
  const MergedErrors& errors;
  const reference::Arithmetic& arithmetic;  ///< of cosines, or of the attention whose weights spread values
  bool certain = true;  ///< whether the cache is certain to be the tested implementation's

  int64_t position() const { return cache.positions[entry]; }
};

/// A choice, and whether the cache after it is still certain to be the tested implementation's.
struct TargetJudgement {
  Choice choice;
  bool certain = true;
};

/// Judges a merge target; kNoPosition means that the entry was dropped.
///
/// claimed  nullopt if no target is claimed: the reference's own choice is then followed
TargetJudgement judge_target(const LeavingEntry& leaving, const SimilarTarget& target,
                             const std::optional<int64_t>& claimed);

/// Judges whether CaM spread the value over the entries that follow; the first of them
/// is recorded as the target.
///
/// attention  of the step's queries over the cache
TargetJudgement judge_spread(const LeavingEntry& leaving, const Cam& cam, const MeanAttention& attention,
                             const std::optional<int64_t>& claimed);

}  // namespace kvbound::sim
