// Scores and norms of a layer's prompt, computed once for all policies and budgets.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/eviction/obcache.hpp>
#include <kvbound/reference/merging/score_ema.hpp>

namespace kvbound::reference {

/// Scores and norms that depend on one layer alone. Each is computed on its first use, for
/// all policies and budgets.
class LayerScores {
 public:
  /// times  adds up the operations' wall times; null: not measured
  explicit LayerScores(OperationTimes* times) : times_(times) {}

  /// window_attention_sums: [query_heads, n]
  const Matrix& attention(const LayerView& layer, int64_t window);
  /// window_scores: [query_heads, n]
  const Matrix& changes(const LayerView& layer, int64_t window, Change change, Space space);
  /// projected_value_norms: [query_heads, n]
  const Matrix& norms(const LayerView& layer, Norm norm);
  /// removal_order of every KV head for all candidates, so that
  /// one order serves every budget; the last removals are cheap.
  const std::vector<std::vector<int64_t>>& removals(const LayerView& layer, int64_t window,
                                                    int64_t candidates);
  /// prompt_ema of every KV head.
  const std::vector<ScoreEma>& predicted(const LayerView& layer, const PredictedScores& options);

 private:
  OperationTimes* times_;
  std::map<int64_t, Matrix> attention_sums_;                      // by window
  std::map<std::tuple<int64_t, Change, Space>, Matrix> changes_;  // by window
  std::map<Norm, Matrix> norms_;
  std::map<int64_t, std::vector<std::vector<int64_t>>> removals_;  // by window
  std::map<std::tuple<double, ScoreKind, Normalisation>, std::vector<ScoreEma>> predicted_;
};

}  // namespace kvbound::reference
