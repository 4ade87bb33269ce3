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

/// What evicting one entry did.
struct EvictedEntry {
  int64_t position = kNotEvicted;
  int64_t merged_into = kNothingEvicted;  ///< of policies that merge
  std::vector<int64_t>
      changed;      ///< entries of the cache that merging changed, as numbered before the eviction
  HeadMerge merge;  ///< of policies that merge
};

/// The protocol of a compressed cache, for the reference's session and for teacher-forced replays alike:
///
///     prompt   fill, merge, begin_evicting
///     step     enter, attend, then evict while the cache exceeds its budget
///     rebuild  fill, merge, begin_evicting, then attend: the step's own entry is among those filled in
///
/// A teacher-forced replay passes the recorded choices to `evict` instead of own_choice() and the nearest key.
class HeadStepper {
 public:
  /// layer   what it views outlives the stepper
  /// budget  entries kept
  HeadStepper(const LayerView& layer, const Policy& policy, int64_t kv_head, int64_t budget);

  /// Fills the cache with a layer's original entries.
  ///
  /// layer  the prompt, or at a rebuild all entries so far
  /// kept   ascending positions
  void fill(const LayerView& layer, const std::vector<int64_t>& kept);
  /// Merges what is not in the cache into it; of policies that merge, after fill.
  ///
  /// targets    of this KV head: `kept` is what the cache was filled with
  /// predicted  scores after the prompt; null at a rebuild: the last query's own, and predictions start anew
  HeadMerge merge(const LayerView& layer, MergeTargets targets, const ScoreEma* predicted);
  /// Running scores as they are when decoding begins; of hosts that evict, after fill and merge.
  ///
  /// head_scores   [group_size, n], at the prompt's end or zeros; empty for hosts that rank no entries
  /// prompt_norms  [group_size, n]: projected norms of the original values, with `critical`; not needed of merged caches
  void begin_evicting(const LayerView& layer, MatrixView head_scores, MatrixView prompt_norms);

  /// The step's entry enters the cache.
  void enter(int64_t position, VectorView key, VectorView value);
  /// The step's queries attend to the cache; running and predicted scores are updated.
  ///
  /// queries  [group_size, head_dim]
  /// returns  [group_size, head_dim]
  Matrix attend(MatrixView queries);
  /// The entry that the host evicts now; none if the cache is within its budget, or if the host never evicts.
  std::optional<int64_t> own_choice() const;
  /// Evicts an entry, which merges with others if the policy merges. After attend, with the same queries.
  ///
  /// into  the position that it merges with, -1 for none, where that choice is forced; CaM's first one
  EvictedEntry evict(int64_t entry, MatrixView queries, std::optional<int64_t> into = std::nullopt);

  const HeadCache& cache() const { return cache_; }
  /// The position of the newest entry that ever entered.
  int64_t newest() const { return newest_; }
  bool evicts() const { return eviction_.has_value(); }
  /// Of hosts that evict.
  const HeadEviction& eviction() const { return *eviction_; }
  /// Of policies that merge.
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
  std::optional<HeadMerging> merging_;    // of policies that merge
  std::optional<HeadEviction> eviction_;  // of hosts that evict
};

}  // namespace kvbound::reference
