// Judges what somebody recorded of a layer against the double reference, per element, by derived bounds.
//
// Forced replay: the choice of who is kept is judged by the reference's scores, and so is who leaves at every step, on the
// cache that the claimant's own earlier choices produced; all later numbers are judged on that cache. So a choice that
// rounding explains costs nothing afterwards, and one that it does not explain is told once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/traces/trace.hpp>

#include "claims.hpp"
#include "comparison.hpp"

namespace kvbound::sim {

/// The arithmetic of a claimant's operations: the same for all where nothing is known of their chains.
struct OperationArithmetic {
  OperationArithmetic(const reference::Arithmetic& all)
      : window_attention(all), projected_value_norms(all), attention(all) {}

  reference::Arithmetic window_attention;
  reference::Arithmetic projected_value_norms;
  reference::Arithmetic attention;
};

/// Whose numbers are judged.
struct Claimant {
  Policy policy;
  int64_t entries = 0;  ///< the layer's budget, in entries per KV head
  int64_t steps = 0;    ///< decode steps recorded, the first ones; at most the trace's
  OperationArithmetic arithmetic;
  Dtype storage =
      Dtype::f64;  ///< of the cache that it was computed from: what is not of that type was rounded
  /// [kv_heads]: the budgets of heads that have each its own; empty: `entries` for all.
  std::vector<int64_t> budgets = {};

  int64_t budget(int64_t kv_head) const {
    return budgets.empty() ? entries : budgets[static_cast<size_t>(kv_head)];
  }
};

/// The tensors that a dump can have, in the order in which each follows from those before: the first that disagrees is
/// where a fault shows first.
const std::vector<std::string>& tensor_names();

/// One tensor of one layer.
struct JudgedTensor {
  int64_t layer = 0;
  TensorAgreement agreement;
};

/// Judges one layer.
///
/// A kept set is judged by the near-tie rule (near_tie.hpp): with `theta-sweep` by its bound, which may exceed the
/// reference's by no more than both errors; with `greedy` a set that is not the reference's is undecided (kept_agreement.hpp).
/// Its positions must ascend, be of the prompt, include the always-kept ones and
/// be as many as the budget, with `adakv` as the head's own (allocation_agreement.hpp); one that is no set of the prompt's positions is replaced by the reference's own from there
/// on, as is one that is not claimed. Who left: left_agreement.hpp; where a host evicts and nothing of that is claimed, the
/// reference's own choice on the claimant's cache leaves.
///
/// claims   shapes as in a dump of this trace, which dump_file.hpp sees to
/// returns  what was claimed, in the order of tensor_names()
/// throws   NonFinite if the trace's numbers are too large for double precision
std::vector<TensorAgreement> agreement(const traces::Layer& layer, const Claimant& claimant,
                                       const LayerClaims& claims);

}  // namespace kvbound::sim
