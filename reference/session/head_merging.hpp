// One KV head's merging: what is predicted of its entries, and how they become one, at the prompt's end and while decoding.
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

/// The state that merging has beside the cache.
///
///     keepkv, convex   the group's weighted means by predicted scores (keep_kv.hpp); convex without votes
///     d2o, kvmerger    by similarity or distance to the target (merge_baselines.hpp)
///     cam              the leaving value is spread over those that follow, or not (cam.hpp)
///
/// In decoding: the new entry enters, queries attend, predictions accumulate their scores, the evicted entry merges.
class HeadMerging {
 public:
  /// merge    not NoMerge
  /// kv_head  of the layer
  HeadMerging(const Merge& merge, const LayerView& layer, int64_t kv_head);

  /// Merges what left the prompt, or the full cache at a rebuild, into a cache of those who stay.
  ///
  /// layer    all entries; its last query is the one that merges
  /// targets  of this KV head
  /// known    what is predicted after the prompt; null at a rebuild: the last query's own scores, and predictions start anew
  /// cache    filled
  HeadMerge compress(const LayerView& layer, MergeTargets targets, const ScoreEma* known, HeadCache& cache);

  /// Notes the entry that was just appended to the cache.
  void enter(const HeadCache& cache);
  /// Predictions take in a step's queries.
  ///
  /// queries  [group_size, head_dim]
  /// tokens   n + t + 1
  void observe(MatrixView queries, const HeadCache& cache, int64_t tokens);

  /// What became of an entry that leaves.
  struct EvictedMerge {
    int64_t into = -1;  ///< the position that it merged with, of several the next one; -1: it is dropped
    std::vector<int64_t> changed;  ///< entries that are not what they were
    HeadMerge record;
  };
  /// Merges an entry that is to leave, and is still there, with others. After observe, with the same queries.
  ///
  /// into  the position that it merges with, -1 for none, where that is already decided; cam's first one
  EvictedMerge merge(int64_t leaving, MatrixView queries, HeadCache& cache,
                     std::optional<int64_t> into = std::nullopt);
  /// Forgets the entry, before it is removed from the cache.
  void leave(int64_t entry);
  /// ln s^ of the cache's entries as it is now, natural log [group_size, entries]; no columns for methods that predict
  /// nothing.
  Matrix predicted() const { return prediction_.all(); }

 private:
  bool votes() const { return rules_.votes; }
  // Whether query heads that go each by its own scores weigh their values against each other.
  bool weighs_heads() const { return rules_.gqa == MergeGqa::joint && group_size_ > 1; }
  Matrix scores_of(const LayerView& layer, const ScoreEma* known) const;
  void merge_clusters(const LayerView& layer, MergeTargets& targets, const ScoreEma* known, HeadCache& cache,
                      HeadMerge& record);
  std::vector<double> log_denominators(MatrixView log_scores, VectorView votes) const;
  std::vector<MergedEntry> merged_entries(const MergingCache& entries,
                                          std::span<const std::vector<int64_t>> clusters, MatrixView queries,
                                          const std::vector<double>& log_denominators) const;
  void put(int64_t entry, const MergedEntry& merged, HeadCache& cache);
  EvictedMerge spread(int64_t leaving, HeadCache& cache, std::optional<int64_t> into) const;
  NearestKey target(int64_t leaving, const HeadCache& cache, std::optional<int64_t> into) const;

  Merge merge_;
  MergeRules rules_;
  int64_t kv_head_;
  int64_t group_size_;
  double scale_;
  ScorePrediction prediction_;
  Matrix logits_;  // of the last step's queries [group_size, entries], for methods that go by them
  std::vector<double> key_norms_;  // [entries], of methods with a target
};

}  // namespace kvbound::reference
