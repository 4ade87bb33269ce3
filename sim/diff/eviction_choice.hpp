// Which entry was evicted from one KV head's cache at a step, and whether that choice was right.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/session/head_stepper.hpp>

#include "choice.hpp"
#include "near_tie.hpp"

namespace kvbound::sim {

/// The entries of a cache that may be evicted, by ascending position.
struct EvictionCandidates {
  std::vector<int64_t> entries, positions;

  /// Indices of all candidates except the one at this position: the candidates kept if that one is evicted.
  std::vector<int64_t> without(int64_t position) const;
};

/// One KV head's cache after a step's queries have attended, when an entry may have to be evicted.
struct EvictionPlace {
  ChoicePlace at;
  int64_t budget = 0;
  const HostRules& rules;
  const reference::HeadStepper& stepper;

  /// The position that the reference evicts; kNoPosition if it evicts none.
  int64_t own() const;
  EvictionCandidates candidates() const;
};

/// Judges an eviction other than the reference's by the host's rules alone.
///
/// returns  nullopt if the entry is in the cache and may be evicted, so that scores have to decide
std::optional<Choice> judge_unscored(const EvictionPlace& place, int64_t claimed);

/// Judges an eviction by the outcome of the near-tie rule.
///
/// candidates  the fault's indices refer to them
/// fault       nullopt: rounding explains the choice
Choice judge_scored(const EvictionPlace& place, int64_t claimed, const EvictionCandidates& candidates,
                    const std::optional<Fault>& fault);

}  // namespace kvbound::sim
