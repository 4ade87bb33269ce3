// Judges whether AdaKV's rule, within rounding, explains how KV heads split their layer's budget.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/session.hpp>

#include <kvbound/sim/diff/claims/tested_implementation.hpp>
#include "near_tie.hpp"

namespace kvbound::sim {

enum class Explanation {
  found,    ///< some ranking of the scores, each within its error, yields the claimed split
  none,     ///< no such ranking yields it
  unknown,  ///< there are too many rankings to try them all, or a score has no finite error bound
};

/// Whether some ranking of uncertain scores yields the claimed split of a layer's budget.
///
/// AdaKV counts each head's candidates among the largest scores of all heads, which are the scores above
/// some limit. For a limit T, every entry with score - error > T is certainly among them, and every entry
/// with score + error < T is certainly not. The search tries every limit, and for each limit every count
/// per head that it allows.
///
/// scores      [kv_heads * candidates], one head after the other
/// candidates  [kv_heads]: how many candidates each head would keep without `adakv`
/// shared      [kv_heads]: how many candidates each head is claimed to keep
Explanation explain(const AdaKv& options, const UncertainScores& scores, std::span<const int64_t> candidates,
                    std::span<const int64_t> shared);

/// The numbers of entries that KV heads keep after a prompt, as a tested implementation recorded them.
struct AllocationJudgement {
  std::vector<int64_t> budgets;  ///< [kv_heads]: the claimed ones; the reference's if the claim is a fault
  int64_t near_tie_swaps = 0;    ///< entries that rounding alone moved to another head than in the reference
  int64_t undecided = 0;         ///< entries moved to another head where the search could not tell why
};

/// Judges how many entries each KV head keeps.
///
/// Without `adakv` every KV head keeps the layer's budget. With `adakv` heads are compared by attention
/// scores, whatever score the policy ranks entries by.
///
/// kept    [kv_heads] lists of any content, of which only the lengths count; null: no kept sets are claimed
/// throws  NonFinite
AllocationJudgement judge_allocation(const LayerView& layer, const TestedImplementation& implementation,
                                     const std::vector<std::vector<int64_t>>* kept);

}  // namespace kvbound::sim
