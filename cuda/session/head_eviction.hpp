// The running scores of a cache's entries, and which entry of each KV head is evicted next.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/score_rules.hpp>

namespace kvbound::cuda {

/// A step's scores of a cache's entries, per query head; device memory.
///
///     s[h, j] = contributions[h, j], or without them  exp(logits[h, j] + log_votes[g, j] - log_sum_exp[h])
struct StepScores {
  const float* contributions = nullptr;  ///< [query_heads, capacity]; null: attention weights
  const float* logits = nullptr;         ///< [query_heads, capacity], as `attention` writes them
  const float* log_sum_exp = nullptr;    ///< [query_heads]
  const float* log_votes = nullptr;      ///< [kv_heads, capacity]; null: every entry counts once
};

/// Which entries a host may evict, and how many stay.
struct EvictionRules {
  int64_t sinks = 0;                 ///< positions below are always kept
  int64_t recent = 0;                ///< so many newest positions are always kept
  bool fills_recent = false;         ///< `recent` is the head's budget minus the sinks
  const int64_t* budgets = nullptr;  ///< [kv_heads], device memory: entries kept after a step
};

inline namespace KVBOUND_CUDA_BUILD {

/// Updates the running scores of reference::HeadEviction by a step's scores, and reduces them over the group.
///
///     accumulate  running[h, j] += s[h, j]      replace  running[h, j] = s[h, j]
///     reduced[g, j] = sum of running[h, j] over the heads of group g in their order, for `mean` over their number
///
/// slots      the newest entry's running score is taken as 0
/// running    [query_heads, capacity]; reduced  [kv_heads, capacity]; columns from `entries` on are left as they are
/// precision  fp32; errors: running_sum_error and group_sum_errors in reference/bounds/obcache_errors.hpp,
///            group_mean_errors in error_bounds.hpp
/// throws     ShapeMismatch; DeviceError
void update_scores(const StepScores& step, const CacheSlots& slots, int64_t query_heads, StepUpdate update,
                   GroupReduction reduction, float* running, float* reduced, Stream stream);

/// Evicts an entry of every KV head that has more entries than its budget: of those that are not always kept the one of
/// smallest score; ties: the larger position. Its slot becomes the head's free slot.
///
/// scores   [kv_heads, capacity], from update_scores; null: all are equal
/// newest   position of the newest entry
/// evicted  [kv_heads]: the evicted position, -1 for none
/// status   set to 1 if a score is NaN, else left as it is
/// exact; the same bits always
/// throws   DeviceError
void evict(const EvictionRules& rules, const CacheSlots& slots, const float* scores, int64_t newest,
           int64_t* evicted, int* status, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
