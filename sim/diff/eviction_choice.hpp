// Who left one KV head's cache at a step, and whether it was one who should have.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/session/head_cache.hpp>

#include "choice.hpp"
#include "near_tie.hpp"

namespace kvbound::sim {

/// One KV head's cache after a step's queries, when somebody may have to leave it.
struct Departure {
  ChoicePlace at;
  int64_t newest = 0;  ///< position of the step's own entry
  int64_t budget = 0;
  const HostRules& rules;
  const reference::HeadCache& cache;
  const reference::Eviction& eviction;

  /// The position that the reference lets go; kNobody for none.
  int64_t own() const;
  /// Entries that may leave, by rising position.
  std::vector<int64_t> candidates() const;
  std::vector<int64_t> positions_of(const std::vector<int64_t>& entries) const;
  /// Indices of these positions, which ascend, without the one that left.
  static std::vector<int64_t> staying(const std::vector<int64_t>& positions, int64_t left);
};

/// What can be said of one who is not the reference's before any score is looked at.
///
/// returns  nothing: it is there and may leave, so scores have to judge
std::optional<Choice> judge_unscored(const Departure& departure, int64_t claimed);

/// What scores say.
///
/// positions  ascending; of which the fault's entries are indices
/// fault      nothing: rounding explains the choice
Choice judge_scored(const Departure& departure, int64_t claimed, const std::vector<int64_t>& positions,
                    const std::optional<Fault>& fault);

}  // namespace kvbound::sim
