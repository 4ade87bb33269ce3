// What a host says at the prompt's end: who stays in any case, and how good the others are.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/eviction/obcache.hpp>
#include <kvbound/reference/merging/score_ema.hpp>

namespace kvbound::reference {

/// Scores and norms that depend on one layer alone, each computed once, however many policies and budgets are tried.
class LayerScores {
 public:
  /// times  where the operations' times go; null: nowhere
  explicit LayerScores(OperationTimes* times) : times_(times) {}

  /// accumulated_attention: [query_heads, n]
  const Matrix& attention(const LayerView& layer, int64_t window);
  /// window_scores: [query_heads, n]
  const Matrix& changes(const LayerView& layer, int64_t window, Change change, Space space);
  /// projected_value_norms: [query_heads, n]
  const Matrix& norms(const LayerView& layer, Norm norm);
  /// removal_order of every KV head, until no candidate is left: the last ones cost little, and every budget is served.
  const std::vector<std::vector<int64_t>>& removals(const LayerView& layer, int64_t window,
                                                    int64_t candidates);
  /// prompt_ema of every KV head.
  const std::vector<ScoreEma>& predicted(const LayerView& layer, const PredictedScores& options);

 private:
  OperationTimes* times_;
  std::map<int64_t, Matrix> attention_;                           // by window
  std::map<std::tuple<int64_t, Change, Space>, Matrix> changes_;  // by window
  std::map<Norm, Matrix> norms_;
  std::map<int64_t, std::vector<std::vector<int64_t>>> removals_;  // by window
  std::map<std::tuple<double, ScoreKind, Normalisation>, std::vector<ScoreEma>> predicted_;
};

/// Who is ranked, and how.
struct Ranking {
  HostRules rules;
  int64_t first_candidate = 0;  ///< candidates are successive positions
  int64_t candidates = 0;
  std::vector<int64_t> always_kept;  ///< ascending positions
  Matrix head_scores;  ///< [query_heads, m]: per query head, as the host scores; m = rules.scored
  Matrix scores;       ///< [kv_heads, m]: reduced over the group

  /// The candidates' columns.
  VectorView candidate_scores(const Matrix& all, int64_t row) const {
    return all.row(row).subspan(static_cast<size_t>(first_candidate), static_cast<size_t>(candidates));
  }
  /// The positions of indices of candidates.
  std::vector<int64_t> positions_of(std::span<const int64_t> indices) const;
};

/// Ranks a prompt's entries, for hosts that do.
///
///     snapkv  attention: window mean; other scores: window sum;  max-pooled
///     h2o     window sum
///     tova    the last query's
///     then, over the group of query heads, attention: mean; other scores: sum
///
/// policy  its host is not streaming-llm
/// source  SnapKV (arXiv:2404.14469), H2O (arXiv:2306.14048), TOVA (arXiv:2401.06104), OBCache (arXiv:2510.07651)
Ranking rank(const LayerView& layer, const Policy& policy, LayerScores& known);

/// The same by other rules than the host's own, such as fewer queries that judge.
///
/// rules  window >= 1
Ranking rank(const LayerView& layer, const Policy& policy, const HostRules& rules, LayerScores& known);

}  // namespace kvbound::reference
