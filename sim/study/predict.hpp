// How well past scores predict the next ones, and whether what a prompt's eviction gave up was wanted later.
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

/// Scores of one kind predicted in one way.
struct Predictor {
  ScoreKind scores = ScoreKind::attention;
  PredictionRule by = PredictionRule::ema;
};

/// All of them, in the order of the reports: every way for attention, then for raw scores.
const std::vector<Predictor>& predictors();
std::string_view name(ScoreKind scores);

struct PredictOptions {
  double ema = 0.9;           ///< weight of the past, 0 <= ema < 1
  int64_t window = 32;        ///< queries that window-mean is over, >= 1
  int64_t steps = 0;          ///< the first so many decode steps, 1..T
  Policy policy;              ///< who stays at the prompt's end
  Budget budget{{20}, true};  ///< entries per KV head, of the prompt
  Budget top{{20}, true};     ///< prompt entries that are the top, 1..n of them
  /// Shares of the entries, those of most attention, whose attention is added up.
  std::vector<Budget> shares{{{1}, true}, {{2}, true}, {{5}, true}, {{10}, true}, {{20}, true}, {{50}, true}};
};

/// One query head's figures, by decode step t = 1..steps.
struct HeadPrediction {
  /// sum_j |s^_j - s_j| / sum_j s_j over the n + t - 1 entries that an earlier query has seen, [predictors, steps]; +infinity
  /// where no double holds it.
  Matrix relative_errors;
  /// The median over the same entries of |s^_j - s_j| / s_j, likewise.
  Matrix entry_errors;
  int64_t evicted = 0;            ///< prompt entries of its KV head that did not stay
  double reentered_ever = 0;      ///< of them the share that is in the top at some step; 0 of none
  std::vector<double> reentered;  ///< [steps]: the share that is in the top at this step
  Matrix mass;  ///< [shares, steps]: attention on the share of all n + t entries that is paid most
};

struct LayerPrediction {
  int64_t layer = 0;
  int64_t budget = 0;                 ///< entries per KV head, before the policy shares them out over heads
  std::vector<HeadPrediction> heads;  ///< [query_heads]
};

struct PredictResult {
  traces::TraceInfo trace;
  PredictOptions options;
  std::vector<LayerPrediction> layers;
};

/// Measures one layer.
///
/// scores   of a query at position x of entries 0..x, attention: s_j = exp(z_j) / sum_i exp(z_i); raw: s_j = exp(z_j)
/// past     all recorded prompt queries and those of the steps before
/// top      the prompt entries of most attention at this step (ties: smaller position), over the whole cache
/// budget   of the layer, entries per KV head
/// layer    has as many decode steps as the options say
/// done     is called after every query head, by one thread at a time; what it throws is rethrown when all heads are measured
///
/// throws   ShapeMismatch for options out of range; InvalidPolicy; NonFinite
/// source   KeepKV (arXiv:2504.09936), Figure 2
std::vector<HeadPrediction> layer_prediction(const traces::Layer& layer, const PredictOptions& options,
                                             int64_t budget, const std::function<void()>& done = {});

/// The same for some of a trace's layers, one in memory at a time.
///
/// progress  pieces of work done, pieces in all
/// Throws InvalidPolicy before any work; TraceError, also for numbers so large that attention over them overflows.
PredictResult predict(const traces::Trace& trace, const std::vector<int64_t>& layers,
                      const PredictOptions& options,
                      const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace kvbound::sim
