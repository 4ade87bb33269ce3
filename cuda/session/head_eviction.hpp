// The running scores of a cache's entries, and which entry of each KV head is evicted next.
#pragma once

#include <cstdint>
#include <optional>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/score_rules.hpp>

#include "append.hpp"

namespace kvbound::cuda {

/// A step's scores of a cache's entries, per query head; device memory.
///
///     s[h, j] = contributions[h, j], or without them  exp(logits[h, j] + log_votes[g, j] - log_sum_exp[h])
struct StepScores {
  const float* contributions = nullptr;  ///< [query_heads, capacity]; null: attention weights
  const float* logits = nullptr;         ///< [query_heads, capacity], as `attention` writes them
  const float* log_sum_exp = nullptr;    ///< [query_heads], begins on 16 bytes
  const float* log_votes = nullptr;      ///< [kv_heads, capacity]; null: every entry counts once
};

/// Where running scores are kept; device memory.
struct UpdatedScores {
  float* running = nullptr;  ///< [query_heads, capacity]
  float* reduced = nullptr;  ///< [kv_heads, capacity]; null: not written
  float* weights = nullptr;  ///< [query_heads, capacity]: the step's scores themselves; null: not written
};

/// The update of running scores by a step's scores.
struct ScoreUpdate {
  StepScores step;
  StepUpdate rule = StepUpdate::replace;
  GroupReduction reduction = GroupReduction::mean;
  UpdatedScores updated;
};

/// Which entries a host may evict, and how many stay.
struct EvictionRules {
  int64_t sinks = 0;                 ///< positions below are always kept
  int64_t recent = 0;                ///< so many newest positions are always kept
  bool fills_recent = false;         ///< `recent` is the head's budget minus the sinks
  const int64_t* budgets = nullptr;  ///< [kv_heads], device memory: entries kept after a step
};

inline namespace KVBOUND_CUDA_BUILD {

/// CriticalKV's two stages, by which entries are evicted during decoding; device memory.
struct EvictionStages {
  const float* running = nullptr;  ///< [query_heads, capacity], from update_scores
  const float* norms = nullptr;    ///< [query_heads, capacity]: projected value norms
  /// [capacity + 1]: for every number of candidates that stay, how many of them stage one
  /// takes; null: it is adaptive
  const int64_t* stage_one_counts = nullptr;
  const float* weights =
      nullptr;  ///< [query_heads, capacity]: the step's attention weights, for an adaptive stage one
  double epsilon = 0;
  GqaProduct gqa = GqaProduct::mean_of_products;
};

/// Updates the running scores of reference::HeadEviction by a step's scores, and reduces them over the group.
///
///     accumulate  running[h, j] += s[h, j]      replace  running[h, j] = s[h, j]
///     reduced[g, j] = sum of running[h, j] over the heads of group g in order; `mean`: over their number
///
/// slots      the newest entry's running score is taken as 0
/// updated    columns from `entries` on are left as they are
/// precision  fp32; errors: running_sum_error and group_sum_errors in reference/bounds/obcache_errors.hpp,
///            group_mean_errors in error_bounds.hpp
/// throws     ShapeMismatch; DeviceError
void update_scores(const ScoreUpdate& update, const CacheSlots& slots, int64_t query_heads, Stream stream);

/// Updates the running scores as update_scores does, to the same bits, and evicts an entry of every KV head
/// that has more entries than its budget: of those that are not always kept the one of smallest reduced
/// score; ties: the larger position. Its slot becomes the head's free slot, or the next entry's.
///
/// update   nullopt: nothing is updated, and all scores are equal
/// next     the next step's entries, which are then appended as `append` does it; no head has a free slot
///          before. nullopt: none are
/// newest   [kv_heads], device memory: the positions of the newest entries
/// evicted  [kv_heads]: the evicted position, -1 for none
/// status   set to 1 if a score that may go is NaN, else left as it is
/// exact for the scores that update_scores returns; the same bits always
/// throws   ShapeMismatch; DeviceError
void evict(const EvictionRules& rules, const CacheSlots& slots, const std::optional<ScoreUpdate>& update,
           const std::optional<NewEntries>& next, int64_t query_heads, const int64_t* newest,
           int64_t* evicted, int* status, Stream stream);

/// The same by CriticalKV's two stages: of the entries that are not always kept and that stage one does not
/// take, which are those of largest score, the one of smallest stage-two score is evicted.
///
///     stage two   mean_h (running[h, j] + epsilon) norms[h, j], or mean_h (running[h, j]) + epsilon
///                 times mean_h norms[h, j]
///     adaptive    the fewest entries with which every query head's always-kept and stage-one entries hold
///                 more than half of its attention; if all that stay do not, all of them
///
/// scores     [kv_heads, capacity], from update_scores
/// newest     the positions are below kMostPositions
/// next       as of evict
/// precision  stage two and sums of weights in fp32; errors: stage_two_score_errors in
///            reference/bounds/error_bounds.hpp
/// throws     ShapeMismatch; DeviceError
void evict_critical(const EvictionRules& rules, const CacheSlots& slots, const float* scores,
                    const EvictionStages& stages, const std::optional<NewEntries>& next, int64_t query_heads,
                    const int64_t* newest, int64_t* evicted, int* status, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
