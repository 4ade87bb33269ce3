// Judges an entry evicted while decoding by CriticalKV's two stages.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

#include "eviction_choice.hpp"
#include "near_tie.hpp"
#include "running_errors.hpp"

namespace kvbound::sim {

/// The attention weights of a step's queries over a cache, and their error bounds, [group_size, entries].
struct StepWeights {
  Matrix weights, errors;
};

/// What the two stages choose by. Everything must outlive the object.
struct CriticalEviction {
  const TwoStage& options;
  const EvictionPlace& place;
  const EvictionCandidates& candidates;
  const BoundedScores& scores;  ///< [candidates]: stage one's
  const Matrix&
      score_errors;           ///< [group_size, candidates]: error bounds of the running scores per query head
  const Matrix& norm_errors;  ///< [group_size, candidates]: of the projected value norms
  const reference::Arithmetic& arithmetic;
  std::function<StepWeights()> weights;  ///< called for an adaptive stage one only

  /// nullopt if the near-tie rule of the two stages explains it, for some size of stage one that rounding may lead to.
  ///
  /// kept  indices of all candidates but the evicted one
  std::optional<Fault> fault(const std::vector<int64_t>& kept) const;

 private:
  BoundedScores stage_two() const;
  CountRange adaptive_range(int64_t k) const;
};

}  // namespace kvbound::sim
