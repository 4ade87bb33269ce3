// Error bounds of a tested implementation's running scores while decoding.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/session/head_eviction.hpp>

#include "near_tie.hpp"

namespace kvbound::sim {

/// Scores with error bounds; owns both.
struct BoundedScores {
  std::vector<double> scores, errors;
  UncertainScores view() const { return {scores, errors}; }
};

/// Error bounds of one KV head's running scores: initially those of the prompt's scores; every step then adds
/// to them or replaces them.
class RunningErrors {
 public:
  /// prompt      [group_size, n]: error bounds of the scores at the prompt's end; empty:
  ///             the scores are exactly 0
  /// positions   n + T
  /// arithmetic  must outlive the object
  RunningErrors(MatrixView prompt, int64_t group_size, int64_t positions,
                const reference::Arithmetic& arithmetic);

  /// Updates the bounds after a step's queries have attended, for a host that ranks entries.
  ///
  /// eviction       holds the scores after the step
  /// positions      of the cache's entries
  /// contributions  [group_size, entries]: error bounds of the step's own scores
  void update(const HostRules& rules, const reference::HeadEviction& eviction,
              const std::vector<int64_t>& positions, const Matrix& contributions);

  /// The bounds of the entries at these positions, [group_size, entries].
  Matrix at(const std::vector<int64_t>& positions) const;

  /// Scores reduced over the group of query heads, with their error bounds.
  ///
  /// scores  [group_size, positions]: the running scores of the entries at these positions
  BoundedScores reduced(const Matrix& scores, const std::vector<int64_t>& positions,
                        GroupReduction group) const;

 private:
  const reference::Arithmetic* arithmetic_;
  Matrix errors_;  // [group_size, n + T], by position
};

}  // namespace kvbound::sim
