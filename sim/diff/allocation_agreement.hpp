// Whether KV heads share out their layer's budget as AdaKV does, or near enough.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/session.hpp>

#include "near_tie.hpp"
#include "tested_implementation.hpp"

namespace kvbound::sim {

enum class Explanation {
  found,    ///< some ranking of the scores, each within its error, leads there
  none,     ///< no ranking does
  unknown,  ///< there are too many rankings to try them all
};

/// Whether uncertain scores explain a sharing out.
///
/// The largest scores of all heads are those above some limit: for a limit T every entry with score - error > T is among
/// them, and no entry with score + error < T is. Every limit and every choice that it leaves is tried.
///
/// scores      [kv_heads * candidates], one head after the other
/// candidates  [kv_heads]: how many each head would keep without
/// shared      [kv_heads]: how many each keeps
Explanation explain(const AdaKv& options, const UncertainScores& scores, std::span<const int64_t> candidates,
                    std::span<const int64_t> shared);

/// What KV heads keep after a prompt by a tested implementation's account.
struct AllocationJudgement {
  std::vector<int64_t>
      budgets;                 ///< [kv_heads]: what is claimed, unless that is a fault; then the reference's
  int64_t near_tie_swaps = 0;  ///< entries that are another head's than the reference's, by rounding alone
  int64_t undecided = 0;       ///< the same, where nothing tells whether rounding explains it
};

/// Judges how many entries each KV head keeps.
///
/// Without `adakv` all keep the tested implementation's budget. With it, scores are attention, whatever the policy's
/// own.
///
/// kept    [kv_heads] of anything; null: nothing is claimed
/// throws  NonFinite
AllocationJudgement judge_allocation(const LayerView& layer, const TestedImplementation& implementation,
                                     const std::vector<std::vector<int64_t>>* kept);

}  // namespace kvbound::sim
