// How far a tested implementation's scores at the prompt's end may be off, whatever the host and the score.
#pragma once

#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/session/ranking.hpp>

#include "tested_implementation.hpp"

namespace kvbound::sim {

/// How the reference ranks a prompt's entries, and how far a tested implementation's numbers after the prompt may be
/// off. All is empty for hosts that rank no entries.
struct PromptErrors {
  PromptErrors(const LayerView& layer, const TestedImplementation& implementation,
               const PromptRecord& reference);

  reference::Ranking ranking;
  Matrix weights;  ///< [query_heads, n]: the window's mean attention, not pooled; with the attention score
  Matrix weight_errors;    ///< [query_heads, n]: likewise, of the weights
  Matrix head_score;       ///< [query_heads, m]: of ranking.head_scores
  Matrix score;            ///< [kv_heads, m]
  Matrix norms;            ///< [query_heads, n]; empty for policies without norms
  Matrix stage_two_score;  ///< [kv_heads, m]; likewise
};

}  // namespace kvbound::sim
