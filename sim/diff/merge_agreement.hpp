// Judges whether entries merged, at the prompt's end and while decoding, as the reference merges them, and the numbers
// that result.
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

/// The judgement of one layer's claims under a policy that merges, and the replay that the claims led to.
struct MergeJudgement {
  /// Those claimed of target_of, votes, merged_key, merged_value, rebuilt_*, evicted, merged_into, step_* and output.
  std::vector<TensorAgreement> agreements;
  LayerRecord record;    ///< the tested implementation's choices; the reference's outputs over its caches
  Tensor output_errors;  ///< [steps, query_heads, head_dim]
  /// [steps * kv_heads]: whether the replayed cache is certain to be the tested implementation's, that is, no earlier
  /// unrecorded choice could have been another by rounding.
  std::vector<bool> certain;

  std::vector<bool> certain_query_heads(
      const LayerShape& shape) const;  ///< [steps * query_heads]: `certain` of their KV heads
  std::vector<bool> certain_steps(const LayerShape& shape) const;  ///< [steps]: `certain` for all KV heads
};

/// Judges one layer's merging by a replay of the tested implementation's own choices.
///
/// Where the clusters of the prompt's end are recorded (target_of), they are judged (prompt_targets.hpp) and followed, and so
/// are the selections and clusters of rebuilds (rebuild_agreement.hpp). Where they are not, the replay uses those that the
/// reference forms on the tested implementation's kept set. A kept entry is then uncertain if rounding alone could change which entries merge into it
/// (target_ambiguity.hpp); its KV head is then uncertain from there on. The votes of an uncertain entry must be
/// possible, and its numbers that differ from the reference's are undecided. With order=merge-first a KV head is
/// then uncertain from the prompt's end, and with a period from the first rebuild.
///
/// While decoding, evictions are judged as without merging, but over the merged cache, by attention, by CriticalKV's
/// stages, and by scores that measure a change if the merged numbers of the whole cache are claimed: without, an eviction
/// other than the reference's is undecided. A target is
/// legal if no other possible target had a clearly larger cosine and its own cosine is not clearly below the threshold.
/// Dropping is legal if no cosine is clearly above the threshold. With CaM, spreading and dropping are both legal where
/// rounding decides the draw.
///
/// Each claimed entry of the cache after the prompt, after a rebuild, and after a decode step's merge is judged against the
/// merge of the tested implementation's own members. The replay then continues with the claimed numbers
/// (forced_merges.hpp), so that bounds do not compound. A row that claims an entry of a choice that cannot be followed is
/// undecided.
///
/// Merged numbers are judged by bounds derived for the tested implementation's arithmetic
/// (reference/bounds/merge_cluster_errors.md), and are undecided where there is no finite bound.
///
/// reference       the reference's record, with the tested implementation's budgets
/// teacher_forced  [kv_heads]: the kept sets, as the tested implementation recorded them
/// throws          NonFinite
MergeJudgement judge_merging(const traces::Layer& layer, const TestedImplementation& implementation,
                             const PromptRecord& reference, const PromptErrors& errors,
                             const std::vector<std::vector<int64_t>>& teacher_forced,
                             const LayerClaims& claims);

}  // namespace kvbound::sim
