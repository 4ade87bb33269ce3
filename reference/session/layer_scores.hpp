// What is computed of a layer's prompt once, for all policies and budgets that are tried on it.
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

/// Scores and norms that depend on one layer alone, each computed once, however many policies and budgets are tried.
class LayerScores {
 public:
  /// times  where the operations' times go; null: nowhere
  explicit LayerScores(OperationTimes* times) : times_(times) {}

  /// window_attention_sums: [query_heads, n]
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
  std::map<int64_t, Matrix> attention_sums_;                      // by window
  std::map<std::tuple<int64_t, Change, Space>, Matrix> changes_;  // by window
  std::map<Norm, Matrix> norms_;
  std::map<int64_t, std::vector<std::vector<int64_t>>> removals_;  // by window
  std::map<std::tuple<double, ScoreKind, Normalisation>, std::vector<ScoreEma>> predicted_;
};

}  // namespace kvbound::reference
