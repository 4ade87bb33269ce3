// Which entry was evicted from one KV head's cache at a step, and whether that was right.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/session/head_stepper.hpp>

#include "choice.hpp"
#include "near_tie.hpp"

namespace kvbound::sim {

/// Entries of a cache that may be evicted, by ascending positions.
struct EvictionCandidates {
  std::vector<int64_t> entries, positions;

  /// Indices of all candidates but the one at this position: those that are kept if it is evicted.
  std::vector<int64_t> without(int64_t position) const;
};

/// One KV head's cache after a step's queries, when an entry may have to be evicted.
struct EvictionPlace {
  ChoicePlace at;
  int64_t budget = 0;
  const HostRules& rules;
  const reference::HeadStepper& stepper;

  /// The position that the reference evicts; kNoPosition for none.
  int64_t own() const;
  EvictionCandidates candidates() const;
};

/// What can be said of an eviction that is not the reference's before any score is looked at.
///
/// returns  nothing: the entry is there and may be evicted, so that scores have to judge
std::optional<Choice> judge_unscored(const EvictionPlace& place, int64_t claimed);

/// What scores say.
///
/// candidates  of which the fault's are indices
/// fault       nothing: rounding explains the choice
Choice judge_scored(const EvictionPlace& place, int64_t claimed, const EvictionCandidates& candidates,
                    const std::optional<Fault>& fault);

}  // namespace kvbound::sim
