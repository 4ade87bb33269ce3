// Judges whether the entries evicted while decoding are those that the reference evicts, up to rounding.
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

/// The evictions of all KV heads and steps, and how they were judged.
struct EvictedJudgement {
  std::vector<std::vector<int64_t>> teacher_forced;  ///< [kv_heads] of [steps]; -1: no entry was evicted
  TensorAgreement agreement;                         ///< without elements if no evictions are claimed
};

/// Judges every eviction by the reference's scores on the cache that the tested implementation's earlier choices
/// produced.
///
/// Running scores carry running error bounds: with h2o those of the prompt's score and of every step's contribution so
/// far, with tova those of the step's own scores. An eviction is legal if no other entry that could have been evicted
/// had a clearly smaller score. That is the near-tie rule of top-k, or with `critical` of its two stages
/// (near_tie.hpp), applied to the entries that were not evicted. Legal evictions that differ from the reference's are
/// near-tie swaps. streaming-llm has no scores: only the reference's own choice is right.
///
/// An eviction that is impossible is a fault: of an entry that is not in the cache, or none where the budget requires
/// one. The replay then evicts the reference's own choice on that cache, as it does where no evictions are claimed.
///
/// kept     [kv_heads]: the entries after the prompt, as the tested implementation recorded them
/// evicted  [steps * kv_heads], not validated; nullopt: no evictions are claimed
/// throws   NonFinite
EvictedJudgement judge_evicted(const traces::Layer& layer, const TestedImplementation& implementation,
                               const PromptRecord& reference, const PromptErrors& errors,
                               const std::vector<std::vector<int64_t>>& kept,
                               const std::optional<std::vector<int64_t>>& evicted);

}  // namespace kvbound::sim
