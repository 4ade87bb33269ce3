// The positions in one KV head's cache, reconstructed from a session's records.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// The positions in a cache from the prompt's end on, ascending: those kept after the
/// prompt, plus every step's own entry, minus the evicted ones; after a rebuild, those
/// that the rebuild kept. Call `enter` and `evict` alternately, once each per decode step.
///
/// The prompt's record and that of the last rebuild must outlive the object. Inconsistent
/// records throw ShapeMismatch.
class CachePositions {
 public:
  CachePositions(const PromptRecord& prompt, int64_t kv_head, int64_t prompt_tokens);

  /// The positions to which the step's queries attend: with the step's own entry, before the step's eviction.
  const std::vector<int64_t>& enter(const StepRecord& step);
  /// The positions after the step's eviction.
  const std::vector<int64_t>& evict(const StepRecord& step);
  /// The positions to which the queries of `step` attend. Successive calls must not go
  /// back to an earlier step.
  ///
  /// steps  all records from the first step on
  const std::vector<int64_t>& at(std::span<const StepRecord> steps, int64_t step);

  const std::vector<int64_t>& now() const { return positions_; }
  /// The current positions except those kept by stage two of a two-stage selection; that is, stage one's, the
  /// always-kept ones, and those appended since the selection.
  std::vector<int64_t> of_stage_one() const;

 private:
  size_t kv_head_;
  int64_t next_;           // position of the next entry
  int64_t first_entered_;  // first position since the prompt's end or the last rebuild
  int64_t entered_ = 0;    // number of steps entered
  const std::vector<std::vector<int64_t>>* stage_one_;  // of the prompt's end or the last rebuild, [kv_heads]
  std::vector<int64_t> positions_;
};

}  // namespace kvbound::reference
