// Whether the entries evicted while decoding are those that the reference evicts, or near enough.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/traces/trace.hpp>

#include "comparison.hpp"
#include "prompt_errors.hpp"
#include "tested_implementation.hpp"

namespace kvbound::sim {

/// The evictions that a tested implementation states, and what they are worth.
struct EvictedJudgement {
  std::vector<std::vector<int64_t>> teacher_forced;  ///< [kv_heads] of [steps]; -1 for none
  TensorAgreement agreement;                         ///< of no elements if nothing is claimed
};

/// Judges every eviction by the reference's scores on the cache that the tested implementation's earlier choices
/// produced.
///
/// Running scores carry running error bounds: with h2o those of the prompt's score and of every step's contribution so
/// far, with tova the step's own. An eviction is legal if no other entry that might have been evicted in its stead had clearly less:
/// the near-tie rule of top-k, or, with `critical`, of its two stages (near_tie.hpp), all others being selected. Legal
/// evictions that are not the reference's are near-tie swaps. With streaming-llm nothing is scored, and only one may
/// leave.
///
/// What cannot be followed, because it is not in the cache or because nothing was evicted where an entry had to be, is a fault; the
/// reference's own choice on that cache leaves instead. So it does wherever nothing is claimed.
///
/// kept  [kv_heads]: who was there after the prompt, by the tested implementation's account
/// evicted  [steps * kv_heads] of anything
/// throws  NonFinite
EvictedJudgement judge_evicted(const traces::Layer& layer, const TestedImplementation& implementation,
                               const PromptRecord& reference, const PromptErrors& errors,
                               const std::vector<std::vector<int64_t>>& kept,
                               const std::optional<std::vector<int64_t>>& evicted);

}  // namespace kvbound::sim
