// One KV head's compressed cache as a session's records tell it: who is in it, with which votes, keys and values.
//
// The records of any backend are enough: what entered is the layer's own, what merged is recorded.
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
  /// The same of an entry that has to be there; throws ShapeMismatch if it is not.
  int64_t row_of(int64_t position) const;
  /// After all others; throws ShapeMismatch unless its position is larger than theirs.
  void append(int64_t position, double vote, VectorView key, VectorView value);
  /// Those at these positions, ascending; throws ShapeMismatch if one of them is not there.
  CacheEntries at(const std::vector<int64_t>& wanted) const;
};

/// A cache just before some of its entries merged: those that stayed and those that merged with them. Those that were
/// dropped at the same time are not in it, so that what merging did can be told from what eviction did.
struct CacheMerge {
  CacheEntries before;
  const std::vector<MergeCluster>* clusters = nullptr;  ///< the record's, at least one
};

/// A cache from the prompt's end on: enter and evict take turns, one pair for each decode step.
///
/// The records outlive it. The cache of a policy that does not merge is told, too. Records that contradict themselves, as by a
/// position that is not in the cache, throw ShapeMismatch, whichever member function comes upon them.
class MergedCache {
 public:
  /// keys    [n + T, head_dim], the KV head's own; they outlive the cache
  /// values  likewise
  MergedCache(MatrixView keys, MatrixView values, int64_t prompt_tokens, int64_t kv_head,
              const PromptRecord& prompt);

  const CacheEntries& entries() const { return entries_; }

  /// What merged at the prompt's end, if anything did.
  const std::optional<CacheMerge>& prompt_merge() const { return prompt_merge_; }
  /// The step's own entry is in the cache; what a rebuild merged, if there was one and it did.
  std::optional<CacheMerge> enter(const StepRecord& step);
  /// The step's queries have attended and the cache is back at its budget; what merged, if anything did.
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
  int64_t tokens_;  // that there are so far
  CacheEntries entries_;
  std::optional<CacheMerge> prompt_merge_;
};

}  // namespace kvbound::reference
