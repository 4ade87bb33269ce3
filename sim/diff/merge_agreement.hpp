// Whether what merged, while decoding too, is what the reference merges, and what became of it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/sim/measure/layer_record.hpp>
#include <kvbound/traces/trace.hpp>

#include "claims.hpp"
#include "comparison.hpp"
#include "prompt_errors.hpp"
#include "tested_implementation.hpp"

namespace kvbound::sim {

/// What claims of a policy that merges are worth, and the replay that they led to.
struct MergeJudgement {
  std::vector<TensorAgreement>
      agreements;        ///< votes, merged_key, merged_value, evicted, merged_into, output: what is claimed
  LayerRecord record;    ///< the tested implementation's choices; the reference's outputs over its caches
  Tensor output_errors;  ///< [steps, query_heads, head_dim]
  /// [steps * kv_heads]: nothing that a tested implementation may have done otherwise, and of which nothing is
  /// recorded, is behind it.
  std::vector<bool> certain;

  std::vector<bool> certain_query_heads(
      const LayerShape& shape) const;  ///< [steps * query_heads], of their KV heads
  std::vector<bool> certain_steps(const LayerShape& shape) const;  ///< [steps]: all KV heads are
};

/// Judges one layer's merging by a replay of the tested implementation's own choices.
///
/// The clusters at the prompt's end are not claimed: they are the reference's own, on the tested implementation's
/// kept set. An entry that another may have merged with by rounding alone (target_ambiguity.hpp) is uncertain, and so is
/// its KV head from then on: its votes must be possible, and its numbers that are not the reference's are undecided. So
/// it is, in all of a KV head, with order=merge-first and after a period's first rebuild, whose selections are not
/// claimed either.
///
/// While decoding, evictions are judged as without merging, over the merged cache, and by attention's top-k; by other
/// scores and by CriticalKV's stages one who is not the reference's is undecided. A target is legal if no other that
/// may have been chosen in its stead had clearly a larger cosine and its own is not clearly below the threshold; being
/// dropped, if none is clearly above. Whether CaM spreads a value is legal either way where rounding decides the draw.
///
/// Merged numbers are judged by bounds derived for the tested implementation's arithmetic
/// (reference/bounds/merge_cluster_errors.md), and undecided where there is none.
///
/// reference  of the tested implementation's budgets
/// teacher_forced     [kv_heads]: who was kept, by the tested implementation's account
/// throws     NonFinite
MergeJudgement judge_merging(const traces::Layer& layer, const TestedImplementation& implementation,
                             const PromptRecord& reference, const PromptErrors& errors,
                             const std::vector<std::vector<int64_t>>& teacher_forced,
                             const LayerClaims& claims);

}  // namespace kvbound::sim
