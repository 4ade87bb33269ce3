// One KV head's compressed cache, reconstructed from a session's records: its
// positions, votes, keys and values.
//
// The records of any backend suffice: unmerged entries are the layer's original ones,
// merged entries are recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/eviction/cache_positions.hpp>

namespace kvbound::reference {

/// Entries of one KV head by ascending position.
struct CacheEntries {
  std::vector<int64_t> positions;
  std::vector<double> votes;  ///< [entries], > 0
  Matrix keys;                ///< [entries, head_dim]
  Matrix values;              ///< [entries, head_dim]

  int64_t entries() const { return std::ssize(positions); }
  /// The row of the entry at a position; -1 if there is none.
  int64_t find(int64_t position) const;
  /// The row of the entry at a position; throws ShapeMismatch if there is none.
  int64_t row_of(int64_t position) const;
  /// Appends an entry; throws ShapeMismatch unless its position is larger than all others.
  void append(int64_t position, double vote, VectorView key, VectorView value);
  /// The entries at the given ascending positions; throws ShapeMismatch if there is none at one of them.
  CacheEntries at(const std::vector<int64_t>& wanted) const;
};

/// A cache just before some of its entries merged: the kept entries and the members that merged with
/// them. Entries that were dropped at the same time are left out, so that the effect of merging is
/// separated from that of eviction.
struct CacheMerge {
  CacheEntries before;
  const std::vector<MergeCluster>* clusters = nullptr;  ///< the record's, at least one
};

/// A cache from the prompt's end on. Call enter and evict alternately, once each per decode step.
///
/// The records must outlive the object. Policies that do not merge are supported, too. Inconsistent records,
/// such as one with a position that is not in the cache, make any member function throw ShapeMismatch.
class MergedCache {
 public:
  /// keys    [n + T, head_dim], the KV head's original keys; their memory must outlive the object
  /// values  [n + T, head_dim], likewise
  MergedCache(MatrixView keys, MatrixView values, int64_t prompt_tokens, int64_t kv_head,
              const PromptRecord& prompt);

  const CacheEntries& entries() const { return entries_; }

  /// The merge at the prompt's end; nullopt if no entries merged.
  const std::optional<CacheMerge>& prompt_merge() const { return prompt_merge_; }
  /// Advances to the cache with the step's own entry, rebuilt if
  /// the step rebuilds. Returns the rebuild's merge, if any.
  std::optional<CacheMerge> enter(const StepRecord& step);
  /// Advances to the cache after the step's eviction. Returns the evicted entry's merge, if any.
  std::optional<CacheMerge> evict(const StepRecord& step);

 private:
  const HeadMerge* merge_of(const std::vector<HeadMerge>& merges) const;
  std::optional<CacheMerge> fill(const HeadMerge& merge);
  CacheEntries originals(const std::vector<int64_t>& positions) const;
  void append_original(CacheEntries& entries, int64_t position) const;

  MatrixView keys_;
  MatrixView values_;
  size_t kv_head_;
  CachePositions positions_;
  int64_t tokens_;  // number of tokens so far
  CacheEntries entries_;
  std::optional<CacheMerge> prompt_merge_;
};

}  // namespace kvbound::reference
