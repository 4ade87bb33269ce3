// A host's ranking at the prompt's end: the always-kept entries, and the scores of the others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

#include "layer_scores.hpp"

namespace kvbound::reference {

/// The candidates of a prompt and their scores.
struct Ranking {
  HostRules rules;
  std::vector<int64_t> scored;  ///< [m]: ascending positions of the entries that have scores
  int64_t first_candidate = 0;  ///< candidates are successive ones of them
  int64_t candidates = 0;
  std::vector<int64_t> always_kept;  ///< ascending positions
  Matrix head_scores;  ///< [query_heads, m]: per query head, as the host scores; m = rules.scored
  Matrix scores;       ///< [kv_heads, m]: reduced over the group

  /// The candidates' part of one row of `all`.
  VectorView candidate_scores(const Matrix& all, int64_t row) const {
    return all.row(row).subspan(first_candidate, candidates);
  }
  /// [candidates]: ascending
  std::span<const int64_t> candidate_positions() const {
    return std::span(scored).subspan(first_candidate, candidates);
  }
  /// The positions of candidates, given their indices among the candidates.
  std::vector<int64_t> positions_of(std::span<const int64_t> indices) const;
};

/// snap_kv with the window of `rules` and the layer's cached attention.
///
/// rules    the host's, or at a rebuild others with fewer queries and more always-kept entries
/// budgets  [kv_heads], always-kept entries included
SnapKvSelection select_snap_kv(const LayerView& layer, const SnapKv& host, const HostRules& rules,
                               std::span<const int64_t> budgets, LayerScores& known);

/// Ranks a prompt's entries.
///
///     snapkv  attention: window mean; other scores: window sum;  max-pooled
///     h2o     window sum
///     tova    the last query's
///     given   its file's, of the query heads and of the KV heads
///     then, over the group of query heads, attention: mean; other scores: sum
///
/// policy  its host ranks entries
/// source  SnapKV (arXiv:2404.14469), H2O (arXiv:2306.14048), TOVA (arXiv:2401.06104),
///         OBCache (arXiv:2510.07651)
Ranking rank(const LayerView& layer, const Policy& policy, LayerScores& known);

/// The same by rules other than the host's own, for example with fewer scoring queries.
///
/// rules  window >= 1
Ranking rank(const LayerView& layer, const Policy& policy, const HostRules& rules, LayerScores& known);

}  // namespace kvbound::reference
