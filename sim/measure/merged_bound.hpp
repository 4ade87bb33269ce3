// A bound on the change of an output by merging: theta over the original entries.
#pragma once

#include <cstdint>

#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/perturbation.hpp>
#include <kvbound/traces/trace.hpp>

#include "layer_record.hpp"
#include "merged_values.hpp"

namespace kvbound::sim {

/// The change of one query's output.
///
///     o - o^ = sum_j w_j V_j - rest,   w = A - b,   b_j = sum_r A'_r C_rj,   rest = sum_r A'_r R_r W^O
///
/// A: the attention over the full cache, A': over the merged one, votes included; C, R: MergedValues.
struct MergedChange {
  reference::EvictionWeights weights;  ///< w [tokens]; the masses are 0
  double rest = 0;                     ///< || rest ||_1
  /// How far rounding may lift the recorded L above theta + rest: that of the recorded output by the
  /// backend's arithmetic, and of A, A', the full output, L and theta by double precision.
  double rounding = 0;
};

/// The changes of one query head's outputs.
///
///     L = || o - o^ ||_1 <= sum_j |w_j| ||V_j||_1 + rest
///
/// proof  proofs/critical_kv.md#theta-all
class MergedBound {
 public:
  /// layer, record, scale  must outlive the object
  /// scale          of the query head
  /// row_norms      [head_dim]: ||W^O_h[c,:]||_1; likewise
  MergedBound(const traces::Layer& layer, const LayerRecord& record, int64_t query_head,
              const reference::RoundingScale& scale, VectorView row_norms);

  /// attention  [tokens]: A of a decode step. Successive calls must not go back to an earlier step.
  MergedChange at(int64_t step, VectorView attention);

 private:
  MatrixView keys() const;
  double projected_norm(VectorView output) const;
  double rounding(MatrixView query, const reference::CacheEntries& entries, VectorView attention,
                  VectorView merged_attention) const;

  const traces::Layer& layer_;
  const LayerRecord& record_;
  int64_t query_head_;
  const reference::RoundingScale& scale_;
  VectorView row_norms_;
  MergedValues values_;
  double largest_key_;  // of the original entries so far
  int64_t seen_ = 0;    // steps whose entries are among them
};

}  // namespace kvbound::sim
