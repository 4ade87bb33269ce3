// The effect of a compressed cache on the attention outputs; the same code measures the
// records of every backend.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/traces/trace.hpp>

#include "layer_record.hpp"
#include "merge_metrics.hpp"

namespace kvbound::sim {

/// One layer's metrics of one run. Rows are decode steps, columns query heads; norms are L1. A ratio x/0 is
/// NaN ("undefined"), 0/0 is 0.
struct LayerMetrics {
  std::vector<int64_t> kept;  ///< [kv_heads]: number of entries at the prompt's end
  Matrix perturbation;        ///< L = ||(aV - a^V^) W^O_h||, hidden-state units
  Matrix relative;            ///< L / ||aV W^O_h||
  /// theta, with the true attention over the full cache; of runs that merge, over the original entries, and
  /// absent where the record does not have the policy's merge
  std::optional<Matrix> bound;
  std::optional<Matrix> rounding;  ///< how far rounding may lift L above theta; likewise
  /// theta with every projected value's distance from the true output, if measured; not with CaM
  std::optional<Matrix> centred_bound;
  std::optional<Matrix> centred_rounding;  ///< likewise
  Matrix kept_mass;  ///< true attention on the entries still in the cache, those of decode steps included
  std::optional<Matrix> stage_one_mass;  ///< on stage one, always-kept and new entries; two-stage selections
  std::vector<double> layer_perturbation;  ///< [steps]: ||sum_h (o_h - o^_h)||
  std::vector<double> layer_relative;      ///< [steps]: layer_perturbation / ||sum_h o_h||
  /// [kv_heads]: of the prompt entries whose eviction would change the first step's outputs most, the share
  /// kept. NaN if those changes overflow double precision; empty if not requested or if there are no steps.
  std::vector<double> recall;
  std::optional<MergeMetrics> merges;  ///< of runs that merge, if measured: measure_merges

  /// Whether L exceeds a bound by more than rounding explains; true for NaN, false if there is no bound.
  bool violates(int64_t step, int64_t head) const;
};

/// x / y with 0/0 = 0 and x/0 = NaN.
double ratio(double numerator, double denominator);

/// The larger of two numbers; NaN if either is.
double larger(double one, double other);

/// Measures several runs of one layer. Quantities that depend on the layer alone (attention over the full
/// cache, projected value norms, eviction errors) are computed once for all runs. A step's metrics do not
/// depend, to the bit, on how many steps follow.
///
/// For a run that only evicts, L and theta are computed from the positions in its cache, in a form without
/// cancellation. For a run that merges (its prompt's record has merges), L is computed from its recorded
/// outputs, and theta by MergedBound.
///
///     theta = sum_j |w_j| ||V_j||,   centred: sum_j |w_j| ||V_j - o W^O||,   o - o^ = sum_j w_j v_j
///
/// Recall is measured on the first step's k entries j of largest sum_h || o_h - o_h(-j) ||_2^2, over the
/// query heads h that share the KV head, where o_h(-j) is the output without entry j
/// (reference::eviction_errors; ties: smaller position).
///
/// Stage one is that of the selection in use: the prompt's, or after a rebuild the rebuild's.
///
/// records       [runs], each with the same number of steps, at most T
/// prompt_norms  [query_heads, n]: L1 norms of the prompt's projected values, if already computed (by far the
///               most costly part); empty: computed here, with the same result to the bit
/// recall_of     k, the number of entries that recall is measured on, at most the prompt's;
///               0: recall is not measured
/// centred       whether to measure centred_bound: O(tokens model_dim) for every step and query head
/// times         adds up "full_attention", called once for every query head and 32 steps, however
///               many runs there are, and "measurement", all else, norms that were not given
///               included; null: not measured
/// returns       [runs]
/// throws        ShapeMismatch if a rebuild by a two-stage selection has no stage one
std::vector<LayerMetrics> measure(const traces::Layer& layer, const std::vector<LayerRecord>& records,
                                  MatrixView prompt_norms = {}, int64_t recall_of = 0,
                                  OperationTimes* times = nullptr, bool centred = false);

}  // namespace kvbound::sim
