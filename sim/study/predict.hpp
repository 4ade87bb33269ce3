// How well past scores predict the next ones, how much scores vary, and whether entries that were
// evicted at the prompt's end matter later.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/sim/options/budget.hpp>
#include <kvbound/traces/trace.hpp>

#include "score_history.hpp"

namespace kvbound::sim {

/// One prediction rule applied to one kind of score.
struct Predictor {
  ScoreKind scores = ScoreKind::attention;
  PredictionRule by = PredictionRule::ema;
};

/// All predictors, in the order of the reports: every rule for attention, then for raw scores.
const std::vector<Predictor>& predictors();
std::string_view name(ScoreKind scores);

/// 1, 2, 5, 10, 20 and 50 %.
std::vector<Budget> usual_shares();

struct PredictOptions {
  double ema = 0.9;     ///< weight of the past, 0 <= ema < 1
  int64_t window = 32;  ///< number of queries that window-mean averages, and of a variance's window, >= 1
  int64_t steps = 0;    ///< number of decode steps, the first ones, 1..T
  Policy policy;        ///< decides which entries are kept at the prompt's end
  Budget budget{{20}, true};  ///< entries per KV head, of the prompt
  Budget top{{20}, true};     ///< number of prompt entries that form the top, 1..n
  /// Shares of the entries: the attention on the entries of largest attention is added up for each.
  std::vector<Budget> shares = usual_shares();
};

/// One query head's results, by decode step t = 1..steps.
struct HeadPrediction {
  /// sum_j |s^_j - s_j| / sum_j s_j over the n + t - 1 entries that an earlier query has seen,
  /// [predictors, steps]; +infinity where the ratio overflows double precision.
  Matrix relative_errors;
  /// The median over the same entries of |s^_j - s_j| / s_j, likewise.
  Matrix entry_errors;
  int64_t evicted = 0;            ///< prompt entries of its KV head that were evicted
  double reentered_ever = 0;      ///< the share of these that is in the top at some step; 0 if there are none
  std::vector<double> reentered;  ///< [steps]: the share of these that is in the top at this step
  Matrix mass;  ///< [shares, steps]: attention on the share of all n + t entries that receives most
  /// The variance of an entry's attention scores, [steps]: over all recorded queries up to the step's own
  /// that saw the entry, over the last `window` of them, and the second divided by the first; means over
  /// the entries that more than `window` queries have seen, NaN if there are none (ScoreVariance).
  std::vector<double> whole_variances, window_variances, variance_ratios;
};

struct LayerPrediction {
  int64_t layer = 0;
  std::vector<int64_t> budgets;       ///< [kv_heads] in entries; adakv shares their sum out among them
  std::vector<HeadPrediction> heads;  ///< [query_heads]
};

struct PredictResult {
  traces::TraceInfo trace;
  PredictOptions options;
  std::vector<LayerPrediction> layers;
};

/// Measures one layer.
///
/// scores   a query at position x has scores of the entries 0..x; attention: s_j = exp(z_j) / sum_i
///          exp(z_i); raw: s_j = exp(z_j)
/// past     predictions use all recorded prompt queries and those of earlier steps
/// top      the prompt entries of largest attention at a step (ties: smaller position), over the full cache
/// budgets  of the layer's KV heads, in entries
/// layer    must have at least options.steps decode steps
/// done     is called after every query head, by one thread at a time; an exception that it throws is
///          rethrown after all heads
///
/// throws   ShapeMismatch for options out of range; InvalidPolicy; NonFinite
/// source   KeepKV (arXiv:2504.09936), Figure 2
std::vector<HeadPrediction> layer_prediction(const traces::Layer& layer, const PredictOptions& options,
                                             const std::vector<int64_t>& budgets,
                                             const std::function<void()>& done = {});

/// The same for some of a trace's layers, one in memory at a time.
///
/// progress  called with the number of work items done, and their total
/// Throws InvalidPolicy before any work; TraceError, also for numbers so large that
/// attention over them overflows.
PredictResult predict(const traces::Trace& trace, const std::vector<int64_t>& layers,
                      const PredictOptions& options,
                      const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace kvbound::sim
