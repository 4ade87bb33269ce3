// How far a tested implementation's running scores may be off while decoding.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/session/head_eviction.hpp>

#include "eviction_choice.hpp"
#include "near_tie.hpp"

namespace kvbound::sim {

/// Scores with bounds on their errors, that own both.
struct BoundedScores {
  std::vector<double> scores, errors;
  UncertainScores view() const { return {scores, errors}; }
};

/// Bounds on one KV head's running scores: those of the prompt's scores, then what every step adds, or replaces them by.
class RunningErrors {
 public:
  /// prompt      [group_size, n]: of the scores at the prompt's end; empty: they are 0 and exact
  /// positions   n + T
  /// arithmetic  outlives the object
  RunningErrors(MatrixView prompt, int64_t group_size, int64_t positions,
                const reference::Arithmetic& arithmetic);

  /// After a step's queries attended, of a host that ranks.
  ///
  /// eviction       with the scores as they are now
  /// positions      of its entries
  /// contributions  [group_size, entries]: of the step's own scores
  void update(const HostRules& rules, const reference::HeadEviction& eviction,
              const std::vector<int64_t>& positions, const Matrix& contributions);

  /// [group_size, entries]: of the entries at these positions.
  Matrix at(const std::vector<int64_t>& positions) const;

  /// The candidates' scores, reduced over the group, with their bounds.
  BoundedScores reduced(const reference::HeadEviction& eviction, const EvictionCandidates& candidates,
                        GroupReduction group) const;

 private:
  const reference::Arithmetic* arithmetic_;
  Matrix errors_;  // [group_size, n + T], by position
};

}  // namespace kvbound::sim
