// Merging in one KV head's cache, at the prompt's end and during decoding: predicted scores,
// targets, merged entries.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>
#include <kvbound/reference/merging/nearest_key.hpp>
#include <kvbound/reference/merging/score_prediction.hpp>

#include <kvbound/reference/eviction/head_cache.hpp>

namespace kvbound::reference {

/// The state that merging needs beside the cache.
///
///     keepkv, convex   means weighted by predicted scores (keep_kv.hpp); convex without votes
///     d2o, kvmerger    means weighted by similarity or distance to the target (merge_baselines.hpp)
///     cam              the evicted value is dropped or spread over the values that follow it (cam.hpp)
///
/// A decode step calls enter, attends, calls observe to update the predicted scores, and
/// merge for the evicted entry.
class HeadMerging {
 public:
  /// merge    not NoMerge
  /// kv_head  index in the layer
  HeadMerging(const Merge& merge, const LayerView& layer, int64_t kv_head);

  /// Merges the evicted entries of the prompt (at a rebuild: of the full cache) into
  /// the cache of kept entries.
  ///
  /// layer    all entries; merged keys and values are determined for its last query
  /// targets  of this KV head
  /// known    the predicted scores after the prompt; null at a rebuild: the last query's own scores are used,
  ///          and the predictions start anew
  /// cache    filled with the kept entries; merged entries replace their targets
  HeadMerge compress(const LayerView& layer, MergeTargets targets, const ScoreEma* known, HeadCache& cache);

  /// Extends the state by the entry that was just appended to the cache.
  void enter(const HeadCache& cache);
  /// Updates the predicted scores with a step's queries.
  ///
  /// queries  [group_size, head_dim]
  /// tokens   n + t + 1, the number of tokens up to step t (from 0)
  void observe(MatrixView queries, const HeadCache& cache, int64_t tokens);

  /// The outcome of merging an evicted entry.
  struct EvictedMerge {
    int64_t into = -1;  ///< position that it merged with (with CaM the first of several); -1: it is dropped
    std::vector<int64_t> changed;  ///< cache entries whose key or value changed
    HeadMerge record;
  };
  /// Merges an entry that is about to be evicted, and is still in
  /// the cache. Call it after observe, with the same queries.
  ///
  /// into  a prescribed target position (with CaM the first of several), -1 for none;
  ///       nullopt: the method chooses
  EvictedMerge merge(int64_t leaving, MatrixView queries, HeadCache& cache,
                     std::optional<int64_t> into = std::nullopt);
  /// Replaces an entry of the cache by a merged one; without log scores its predicted scores stay.
  void put(int64_t entry, const MergedEntry& merged, HeadCache& cache);
  /// Removes the entry's state. Call it before the entry is removed from the cache.
  void leave(int64_t entry);
  /// ln s^ of the cache's current entries, natural log
  /// [group_size, entries]; no columns for methods that predict no scores.
  Matrix predicted() const { return prediction_.all(); }

 private:
  bool votes() const { return rules_.votes; }
  // Whether several query heads, each with its own scores, weight the members of a cluster jointly.
  bool weighs_heads() const { return rules_.gqa == MergeGqa::joint && group_size_ > 1; }
  Matrix scores_of(const LayerView& layer, const ScoreEma* known) const;
  void merge_clusters(const LayerView& layer, MergeTargets& targets, const ScoreEma* known, HeadCache& cache,
                      HeadMerge& record);
  std::vector<double> log_denominators(MatrixView log_scores, VectorView votes) const;
  std::vector<MergedEntry> merged_entries(const MergingCache& entries,
                                          std::span<const std::vector<int64_t>> clusters, MatrixView queries,
                                          const std::vector<double>& log_denominators) const;
  EvictedMerge spread(int64_t leaving, HeadCache& cache, std::optional<int64_t> into) const;
  NearestKey target(int64_t leaving, const HeadCache& cache, std::optional<int64_t> into) const;

  Merge merge_;
  MergeRules rules_;
  int64_t kv_head_;
  int64_t group_size_;
  double scale_;
  ScorePrediction prediction_;
  Matrix
      logits_;  // of the last step's queries [group_size, entries], for methods that use attention or scores
  std::vector<double> key_norms_;  // [entries], for methods with a target
};

}  // namespace kvbound::reference
