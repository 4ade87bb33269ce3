// Prediction of future queries' scores by an exponential moving average (EMA) of past
// queries' scores, on the device.
#pragma once

#include <cstdint>

#include <kvbound/cuda/eviction/snap_kv.hpp>
#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/policy.hpp>

#include "weighted_mean.hpp"

namespace kvbound::cuda {

/// Moving averages of the scores of entries, per query head: reference::ScoreEma; device memory.
///
///     S = mantissa exp(exponent),   mantissa 0 and exponent -infinity before the first query
struct ScoreAverages {
  float* exponents = nullptr;  ///< [query_heads, capacity]
  float* mantissas = nullptr;  ///< [query_heads, capacity]: 0, or 2^-64 to 2
  float* weights = nullptr;    ///< c [kv_heads, capacity]
  int64_t capacity = 0;
};

inline namespace KVBOUND_CUDA_BUILD {

/// Bytes that `prompt_averages` needs: the logits of one KV head's group for fp32, none for 16-bit types.
template <Storage T>
int64_t prompt_averages_workspace(int64_t query_heads, int64_t kv_heads, int64_t window, int64_t tokens);

/// The averages after the prompt, over the window's queries that can see an entry, in their
/// order: reference::prompt_ema.
///
///     S' = a S + (1 - a) s,   c' = a c + (1 - a),   from S = c = 0
///
/// window       all recorded queries; its tokens are the entries, at most averages.capacity
/// log_sum_exp  [query_heads, window], natural log; read for scores=attention only
/// averages     written; entries behind the tokens are left as they are
/// precision    fp32, logits by window_arithmetic<T>(); error: score_ema_error in
///              reference/bounds/merge_cluster_errors.hpp, and the errors of logits and log-sum-exp
/// throws       ShapeMismatch; DeviceError
template <Storage T>
void prompt_averages(const PredictedScores& options, const WindowView<T>& window, const float* log_sum_exp,
                     const ScoreAverages& averages, Workspace workspace, Stream stream);

/// Updates the averages of a cache's entries with one query of each query head:
/// reference::ScoreEma::observe_logits.
///
/// logits       [query_heads, capacity], log_sum_exp [query_heads]: from `attention`,
///              votes included in the latter
/// slots        the newest entry has been seen by no query before
/// query_heads  kv_heads divides it
/// predicted    [query_heads, capacity]: receives what predicted_scores gives for them, with this
///              log_seen; null: not wanted
/// precision    fp32; error: as above
/// throws       ShapeMismatch; DeviceError
void observe_scores(const PredictedScores& options, const float* logits, const float* log_sum_exp,
                    const CacheSlots& slots, int64_t query_heads, const ScoreAverages& averages,
                    const float* log_seen, float* predicted, Stream stream);

/// ln (1 - a^tokens), by which averages are divided unless they are normalised exactly. Throws
/// ShapeMismatch for no tokens.
float log_seen_share(const PredictedScores& options, int64_t tokens);

/// Sets the predictions of merged entries: reference::ScoreEma::replace.
///
/// log_scores  [query_heads, merged.clusters.capacity]: ln s^_r, from cluster_weights
/// merged      kept entries without members keep their averages, and so do those that no query has seen
/// log_seen    as in predicted_scores
/// precision   fp32; throws ShapeMismatch; DeviceError
void replace_scores(const PredictedScores& options, const float* log_scores, const MergedEntries& merged,
                    int64_t query_heads, int64_t kv_heads, const float* log_seen,
                    const ScoreAverages& averages, Stream stream);

/// ln s^ of all entries: reference::ScoreEma::log_predicted.
///
///     exact: S / c;   paper: S / (1 - a^tokens)
///
/// count      [kv_heads], device memory: entries
/// log_seen   [kv_heads], device memory: log_seen_share of n tokens at the prompt's end, of n + t + 1 at
///            decode step t
/// predicted  [query_heads, capacity], natural log; -infinity for an entry that no query has seen
/// precision  fp32; throws ShapeMismatch; DeviceError
void predicted_scores(const PredictedScores& options, const ScoreAverages& averages, int64_t query_heads,
                      int64_t kv_heads, const int64_t* count, const float* log_seen, float* predicted,
                      Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
