// Judges which entries a tested implementation evicted from one KV head's merged cache.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/eviction/change_space.hpp>
#include <kvbound/reference/session/head_stepper.hpp>
#include <kvbound/traces/trace.hpp>

#include "choice.hpp"
#include "critical_eviction.hpp"
#include "eviction_choice.hpp"
#include "merged_errors.hpp"
#include "running_errors.hpp"
#include "tested_implementation.hpp"

namespace kvbound::sim {

/// The error bounds of the running scores and projected norms of a merged cache's entries, by which evictions are judged as
/// without merging. Scores that measure a change have bounds only where the keys and values of the whole cache are exact
/// (forced_merges.hpp).
class MergedEvictions {
 public:
  /// The references must outlive the object.
  MergedEvictions(const traces::Layer& layer, const TestedImplementation& implementation,
                  const HostRules& rules, int64_t kv_head);

  /// Starts from a cache that was filled.
  ///
  /// head_errors  [group_size, n]: error bounds of the running scores; empty: these are exactly 0
  void begin(MatrixView head_errors, const reference::HeadCache& cache, const MergedErrors& errors);
  /// Takes in the value of an entry that is new or has changed.
  void revalue(int64_t entry, const reference::HeadCache& cache, const MergedErrors& errors);
  /// Takes in the attention of a step.
  ///
  /// stepper    after its queries have attended
  /// rows       errors of the cache
  /// attention  error bounds of the step's attention
  void observe(MatrixView queries, const reference::HeadStepper& stepper, const CacheRowErrors& rows,
               const reference::AttentionErrors& attention);

  /// Judges the eviction that is claimed; nullopt where none is.
  ///
  /// certain  whether the cache is certain to be the tested implementation's
  Choice judge(const EvictionPlace& place, const std::optional<int64_t>& claimed, bool certain) const;

 private:
  Choice judge_by_scores(const EvictionPlace& place, int64_t claimed) const;
  void set_norm_errors(const std::vector<int64_t>& entries, const reference::HeadCache& cache,
                       const MergedErrors& all_errors);
  Matrix contribution_errors(MatrixView queries, const reference::HeadCache& cache,
                             const CacheRowErrors& rows, const reference::AttentionErrors& attention) const;
  MatrixView projection() const;

  const traces::Layer& layer_;
  const TestedImplementation& implementation_;
  const Policy& policy_;
  const reference::Arithmetic& arithmetic_;
  const HostRules rules_;
  const ScoreRules score_;
  const int64_t g_, group_size_;
  std::vector<reference::ChangeSpace> spaces_;   // [group_size], for scores that measure a change
  std::optional<RunningErrors> running_errors_;  // of the host's scores
  Matrix norm_errors_;                           // [group_size, n + T] by position, with `critical`
  StepWeights weights_;                          // the step's, with `critical`
};

}  // namespace kvbound::sim
