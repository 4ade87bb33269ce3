// The entry that an evicted one merged with while decoding, and whether it may have.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/eviction/head_cache.hpp>

#include "choice.hpp"
#include "merged_errors.hpp"
#include "spread_ambiguity.hpp"

namespace kvbound::sim {

/// An entry that is about to leave one KV head's cache.
struct LeavingEntry {
  ChoicePlace at;
  int64_t entry = 0;  ///< of the cache
  const reference::HeadCache& cache;
  const MergedErrors& errors;
  const reference::Arithmetic& arithmetic;
  bool certain = true;  ///< whether the cache is certain to be the tested implementation's

  int64_t position() const { return cache.positions[entry]; }
};

/// A choice, and whether the cache is still certain to be the tested implementation's after it.
struct TargetJudgement {
  Choice choice;
  bool certain = true;
};

/// Judges a target, kNoPosition if the entry was dropped.
///
/// claimed  nothing if nothing is: then the reference's own choice is followed
TargetJudgement judge_target(const LeavingEntry& leaving, const SimilarTarget& target,
                             const std::optional<int64_t>& claimed);

/// Judges whether CaM spread the value over those that follow, of which the first is the target.
///
/// attention  of the step, over the cache
TargetJudgement judge_spread(const LeavingEntry& leaving, const Cam& cam, const MeanAttention& attention,
                             const std::optional<int64_t>& claimed);

}  // namespace kvbound::sim
