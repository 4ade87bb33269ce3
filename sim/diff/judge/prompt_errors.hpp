// Error bounds of a tested implementation's scores at the prompt's end, for every host and score.
#pragma once

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/session/ranking.hpp>

#include <kvbound/sim/diff/claims/tested_implementation.hpp>

namespace kvbound::sim {

/// The reference's ranking of a prompt's entries, with error bounds of a tested implementation's numbers. All
/// members are empty for hosts that rank no entries.
struct PromptErrors {
  PromptErrors() = default;  ///< as for hosts that rank no entries
  PromptErrors(const LayerView& layer, const TestedImplementation& implementation,
               const PromptRecord& reference);
  /// The same by other rules than the prompt's: those of a rebuild.
  PromptErrors(const LayerView& layer, const TestedImplementation& implementation,
               const PromptRecord& reference, const HostRules& rules);

  reference::Ranking ranking;
  Matrix weights;  ///< [query_heads, n]: the window's mean attention, not pooled; where attention decides
  Matrix weight_errors;    ///< [query_heads, n]: error bounds of `weights`
  Matrix head_score;       ///< [query_heads, m]: error bounds of ranking.head_scores
  Matrix score;            ///< [kv_heads, m]: error bounds of ranking.scores
  Matrix norms;            ///< [query_heads, n]: error bounds; empty for policies without norms
  Matrix stage_two_score;  ///< [kv_heads, m]: error bounds; likewise
};

}  // namespace kvbound::sim
