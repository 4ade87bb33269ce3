// Whether who was kept after the prompt is who the reference keeps, or near enough.
#pragma once

#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/ranking.hpp>

#include "agreement.hpp"

namespace kvbound::sim {

/// The options of CriticalKV's stages, where the selection has any; null else.
const TwoStage* two_stage(const Selection& selection);

/// How the reference ranks a prompt's entries, and how far a claimant's numbers after the prompt may be off. All is empty
/// for hosts that rank nobody.
struct PromptErrors {
  PromptErrors(const LayerView& layer, const Claimant& claimant, const PromptRecord& reference);

  reference::Ranking ranking;
  Matrix weight_errors;    ///< [query_heads, n]: of ranking.attention_weights; with the attention score
  Matrix head_score;       ///< [query_heads, m]: of ranking.head_scores
  Matrix score;            ///< [kv_heads, m]
  Matrix norms;            ///< [query_heads, n]; empty for policies without norms
  Matrix stage_two_score;  ///< [kv_heads, m]; likewise
};

/// Judges the kept sets of all KV heads.
///
/// With `greedy` the reference's own set agrees, and any other is undecided: every removal follows from those before, so
/// rounding at one of them may lead anywhere, and no score of the prompt's end says where.
///
/// kept     [kv_heads] of positions; anything
/// forced   [kv_heads], the reference's own: replaced by what is claimed where that is a set of the prompt's positions
TensorAgreement judge_kept(const LayerView& layer, const Claimant& claimant, const PromptRecord& reference,
                           const PromptErrors& errors, const std::vector<std::vector<int64_t>>& kept,
                           std::vector<std::vector<int64_t>>& forced);

}  // namespace kvbound::sim
