// Judges the metrics that a tested implementation recorded, with error bounds derived step by step.
#pragma once

#include <vector>

#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/sim/diff/claims/claims.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>
#include <kvbound/sim/diff/claims/tested_implementation.hpp>
#include <kvbound/sim/measure/layer_record.hpp>
#include <kvbound/traces/trace.hpp>

#include "layer_replay.hpp"

namespace kvbound::sim {

/// The error bounds of one layer's metrics.
///
/// Without merging, L follows from the weights of the evicted entries or from two outputs
/// (perturbation_errors.hpp). With merging it follows from the outputs alone, and there is no theta.
class MetricErrors {
 public:
  /// The references must outlive the object.
  MetricErrors(const traces::Layer& layer, const TestedImplementation& implementation);

  /// Derives the bounds of one KV head at one step; for different ones on any threads.
  void add(const AttendedCache& attended);

  /// Those claimed of kept_mass, bound, perturbation and layer_perturbation, held against what
  /// `measure` says of the record.
  ///
  /// record   with outputs, for policies that merge
  /// certain  [steps * kv_heads]: AttendedCache::certain
  std::vector<TensorAgreement> judge(const LayerRecord& record, const std::vector<char>& certain,
                                     const LayerClaims& claims) const;

 private:
  reference::PerturbationErrors of_outputs(const AttendedCache& attended, int64_t query) const;
  std::vector<double> layer_errors() const;

  const traces::Layer& layer_;
  const LayerShape shape_;
  const reference::Arithmetic& arithmetic_;
  const bool merges_;
  const Matrix norms_, norm_errors_;                 // [query_heads, n + T]: in L1
  const Matrix row_norms_;                           // [query_heads, head_dim]: of the rows of W^O
  Matrix kept_mass_, bound_, perturbation_, terms_;  // [steps, query_heads]
};

}  // namespace kvbound::sim
