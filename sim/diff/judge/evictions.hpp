// Judges which entries a tested implementation evicted from one KV head's cache while decoding.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/reference/session/head_stepper.hpp>
#include <kvbound/sim/diff/claims/tested_implementation.hpp>
#include <kvbound/traces/trace.hpp>

#include "choice.hpp"
#include "merged_errors.hpp"
#include "near_tie.hpp"
#include "running_errors.hpp"

namespace kvbound::sim {

/// The entries of a cache that may be evicted, by ascending position.
struct EvictionCandidates {
  std::vector<int64_t> entries, positions;
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

/// Sizes of a layer's original values that all KV heads' judgements share; empty where the
/// policy does not need them.
struct EvictionSizes {
  EvictionSizes(const traces::Layer& layer, const TestedImplementation& implementation);

  std::vector<reference::ChangeSpace> spaces;  ///< [query_heads], for scores that measure a change
  Matrix
      norm_errors;  ///< [query_heads, n + T]: of projected norms, for selections that also decide evictions
};

/// Judges one KV head's evictions by the reference's scores on the cache that the tested implementation's
/// earlier choices produced.
///
/// Running scores carry running error bounds: with h2o those of the prompt's score and of every step's
/// contribution so far, with tova those of the step's own scores. An eviction is legal if no other entry that
/// could have been evicted had a clearly smaller score. That is the near-tie rule of top-k, or with
/// `critical` of its two stages (near_tie.hpp), applied to the entries that were not evicted. streaming-llm
/// has no scores: only the reference's own choice is right.
///
/// Scores that measure a change have bounds only where the keys and values of the whole cache are exact
/// (exact_rows.hpp), as they are without merging. Where a candidate's score has no bound, and on a cache that
/// is not certain to be the tested implementation's, an eviction other than the reference's is undecided, and
/// the reference's own is no evidence.
class Evictions {
 public:
  /// The references must outlive the object.
  Evictions(const traces::Layer& layer, const TestedImplementation& implementation,
            const EvictionSizes& sizes, const HostRules& rules, int64_t kv_head);

  /// Starts from a cache that was filled.
  ///
  /// head_errors  [group_size, n]: error bounds of the running scores; empty: these are exactly 0
  void begin(MatrixView head_errors, const reference::HeadCache& cache, const MergedErrors& errors);
  /// Takes in the values of entries that are new, or have changed, in a cache that merges.
  void revalue(std::span<const int64_t> entries, const reference::HeadCache& cache,
               const MergedErrors& errors);
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
  struct Scored;
  Scored scored(const EvictionPlace& place) const;
  std::optional<Fault> fault(const Scored& scored, int64_t candidate) const;
  bool can_tell(const EvictionPlace& place) const;
  CountRange adaptive_range(const Scored& scored, int64_t k) const;
  Matrix contribution_errors(MatrixView queries, const reference::HeadCache& cache,
                             const CacheRowErrors& rows, const reference::AttentionErrors& attention) const;
  void set_norm_errors(std::span<const int64_t> entries, const reference::HeadCache& cache,
                       const MergedErrors& all_errors);
  void set_sizes(std::span<const int64_t> entries, const reference::HeadCache& cache);

  const traces::Layer& layer_;
  const TestedImplementation& implementation_;
  const reference::Arithmetic& arithmetic_;
  const HostRules rules_;
  const ScoreRules score_;
  const SelectionRules selection_;
  const int64_t g_, group_size_;
  std::span<const reference::ChangeSpace> spaces_;  // [group_size], for scores that measure a change
  reference::MeasuredValues measured_;              // [group_size, n + T] by position, likewise
  Matrix norm_errors_;                              // [group_size, n + T] by position, with `critical`
  std::optional<RunningErrors> running_errors_;     // of the host's scores
  Matrix weights_, weight_errors_;  // [group_size, entries]: the step's, for an adaptive stage one
};

}  // namespace kvbound::sim
