// What a compressed cache did to the model, measured from the records of any backend by one piece of code.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/traces/trace.hpp>

#include "layer_record.hpp"
#include "merge_metrics.hpp"

namespace kvbound::sim {

/// One layer's figures of one run. Rows are decode steps, columns query heads; norms are L1. A ratio x/0
/// is NaN ("undefined"), 0/0 is 0.
struct LayerMetrics {
  std::vector<int64_t> kept;  ///< [kv_heads]: how many entries each has at the prompt's end
  Matrix perturbation;        ///< L = ||(aV - a^V^) W^O_h||, hidden-state units
  Matrix relative;            ///< L / ||aV W^O_h||
  std::optional<Matrix>
      bound;  ///< theta, with the true attention over the whole cache; not of runs that merge
  std::optional<Matrix>
      rounding;      ///< how far rounding may lift L over theta: perturbation_rounding; likewise
  Matrix kept_mass;  ///< true attention on kept positions and new ones
  std::optional<Matrix> stage_one_mass;  ///< on stage one, always-kept and new entries; two-stage selections
  std::vector<double> layer_perturbation;  ///< [steps]: ||sum_h (o_h - o^_h)||
  std::vector<double> layer_relative;      ///< [steps]: layer_perturbation / ||sum_h o_h||
  /// [kv_heads]: of the prompt entries whose eviction would move the first step's outputs most, the share that was kept.
  /// NaN if their errors are too large for a double; empty if it was not asked for, or there is no step.
  std::vector<double> recall;
  std::optional<MergeMetrics> merges;  ///< of runs that merge, if they were measured: measure_merges

  /// Whether L exceeds theta by more than rounding can explain; true for NaN. Never without theta.
  bool violates(int64_t step, int64_t head) const;
};

/// x / y with 0/0 = 0 and x/0 = NaN.
double ratio(double numerator, double denominator);

/// The larger of two numbers; NaN if either is.
double larger(double one, double other);

/// Measures several runs of one layer: what depends on the layer alone (attention over the full cache,
/// projected value norms, eviction errors) is computed once for all of them. A step's figures do not depend, to the bit,
/// on how many steps follow.
///
/// Where a run only evicts, L is measured in the form that does not cancel, from who is in the cache. Where it merges (its
/// prompt's record has merges), L is measured from the outputs that it recorded, and there is no theta.
///
/// Recall is of the entries j of largest sum_h || o_h - o_h(-j) ||_2^2 on the first step, over the query heads h that share
/// the KV head, o_h(-j) the output without j (reference::eviction_errors; ties: smaller position).
///
/// Stage one is that of the selection in use: the prompt's, after a rebuild the rebuild's.
///
/// records       [runs], each with the same number of steps, at most T
/// prompt_norms  [query_heads, n]: L1 norms of the prompt's projected values, if the reference has them
///               already (by far the most costly part); empty: computed here. Same result, to the bit
/// recall_of     how many entries recall is of; all of the prompt's, if those are fewer; 0: recall is not measured
/// returns       [runs]
/// throws        ShapeMismatch if a rebuild by a two-stage selection has no stage one
std::vector<LayerMetrics> measure(const traces::Layer& layer, const std::vector<LayerRecord>& records,
                                  MatrixView prompt_norms = {}, int64_t recall_of = 0);

}  // namespace kvbound::sim
