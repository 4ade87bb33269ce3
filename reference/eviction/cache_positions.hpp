// Which positions are in one KV head's cache, as a session's records tell it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// The positions in a cache from the prompt's end on, ascending: kept after the prompt, then every step's own entry, less what
/// was evicted; after a rebuild those that it kept. `enter` and `evict` take turns, one pair for each decode step.
///
/// The prompt's record and that of the last rebuild outlive the object. Records that contradict themselves throw ShapeMismatch.
class CachePositions {
 public:
  CachePositions(const PromptRecord& prompt, int64_t kv_head, int64_t prompt_tokens);

  /// As the step's queries find the cache: its own entry is there, nothing is evicted yet.
  const std::vector<int64_t>& enter(const StepRecord& step);
  /// After the step.
  const std::vector<int64_t>& evict(const StepRecord& step);
  /// As the queries of `step` find the cache. Steps must not go back.
  ///
  /// steps  all records from the first step on
  const std::vector<int64_t>& at(std::span<const StepRecord> steps, int64_t step);

  const std::vector<int64_t>& now() const { return positions_; }
  /// Of these, those that are not there by stage two of a two-stage selection: stage one, always kept, entered since.
  std::vector<int64_t> of_stage_one() const;

 private:
  size_t kv_head_;
  int64_t next_;                                        // position of the next entry
  int64_t first_entered_;                               // since the prompt's end or the last rebuild
  int64_t entered_ = 0;                                 // steps
  const std::vector<std::vector<int64_t>>* stage_one_;  // of the prompt's end or the last rebuild, [kv_heads]
  std::vector<int64_t> positions_;
};

}  // namespace kvbound::reference
