// One KV head's compressed cache, decoded one step at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/eviction/head_cache.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>
#include <kvbound/reference/merging/score_ema.hpp>

#include "head_eviction.hpp"
#include "head_merging.hpp"

namespace kvbound::reference {

/// The outcome of evicting one entry.
struct EvictedEntry {
  int64_t position = kNotEvicted;
  int64_t merged_into = kNothingEvicted;  ///< set by policies that merge
  std::vector<int64_t> changed;           ///< cache entries that merging changed, indices before the eviction
  HeadMerge merge;                        ///< set by policies that merge
};

/// A compressed cache's sequence of calls, used by the reference's session and by teacher-forced replays:
///
///     prompt   fill, merge, begin_evicting
///     step     enter, attend, then evict while the cache exceeds its budget
///     rebuild  fill, merge, begin_evicting, then attend: `fill` already includes the step's own entry
///
/// A teacher-forced replay passes recorded choices to `evict`,
/// in place of own_choice() and the target of the nearest key.
class HeadStepper {
 public:
  /// layer   the memory that it views must outlive the stepper
  /// budget  number of entries kept
  HeadStepper(const LayerView& layer, const Policy& policy, int64_t kv_head, int64_t budget);

  /// Fills the cache with a layer's original entries.
  ///
  /// layer  the prompt, or at a rebuild all entries so far
  /// kept   ascending positions
  void fill(const LayerView& layer, const std::vector<int64_t>& kept);
  /// Merges the layer's entries that are not in the cache into it. For policies that merge, after fill.
  ///
  /// targets    of this KV head; its `kept` are the positions with which the cache was filled
  /// predicted  predicted scores after the prompt; null at a rebuild: the last query's own scores are used,
  ///            and the predictions start anew
  HeadMerge merge(const LayerView& layer, MergeTargets targets, const ScoreEma* predicted);
  /// Sets the running scores with which decoding begins. For hosts that evict, after fill and merge.
  ///
  /// head_scores   [group_size, n], at the prompt's end or zeros; empty for hosts that rank no entries
  /// prompt_norms  [group_size, n]: projected norms of the original values, for `critical`;
  ///               not used for merged caches
  void begin_evicting(const LayerView& layer, MatrixView head_scores, MatrixView prompt_norms);

  /// Appends the step's entry to the cache.
  void enter(int64_t position, VectorView key, VectorView value);
  /// The attention output of the step's queries over the cache; updates the running and predicted scores.
  ///
  /// queries  [group_size, head_dim]
  /// returns  [group_size, head_dim]
  Matrix attend(MatrixView queries);
  /// The entry that the host evicts now; nullopt if the cache is within its budget or
  /// the host does not evict.
  std::optional<int64_t> own_choice() const;
  /// Evicts an entry and, if the policy merges, merges it with others. Call it after
  /// attend, with the same queries.
  ///
  /// into  a prescribed target position (with CaM the first of several), -1 for none;
  ///       nullopt: the policy chooses
  EvictedEntry evict(int64_t entry, MatrixView queries, std::optional<int64_t> into = std::nullopt);
  /// Replaces an entry's votes, key and value by those that a tested implementation has; running and
  /// predicted scores stay. For policies that merge.
  void replace(int64_t entry, double votes, VectorView key, VectorView value);

  const HeadCache& cache() const { return cache_; }
  /// The position of the newest entry that was appended.
  int64_t newest() const { return newest_; }
  bool evicts() const { return eviction_.has_value(); }
  /// Only for hosts that evict.
  const HeadEviction& eviction() const { return *eviction_; }
  /// Only for policies that merge.
  const HeadMerging& merging() const { return *merging_; }

 private:
  Matrix cache_norms(const LayerView& layer, MatrixView prompt_norms) const;

  LayerView layer_;
  Policy policy_;
  MergeRules merge_rules_;
  int64_t kv_head_;
  int64_t budget_;
  int64_t newest_;
  HeadCache cache_;
  std::optional<HeadMerging> merging_;    // for policies that merge
  std::optional<HeadEviction> eviction_;  // for hosts that evict
};

}  // namespace kvbound::reference
