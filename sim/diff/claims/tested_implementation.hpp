// The implementation whose recorded numbers are compared with the reference's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/arithmetic.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/policy.hpp>

namespace kvbound::sim {

/// The arithmetic of a tested implementation's operations; the same for all operations if its
/// kernels are unknown, but that parts and tiles are said of outputs' sums, and not of those that
/// scores of a prompt are divided by.
struct OperationArithmetic {
  OperationArithmetic(const reference::Arithmetic& all)
      : window_attention(of_scores(all)),
        change_scores(of_scores(all)),
        projected_value_norms(all),
        projected_value_norms_l2(all),
        attention(all),
        nearest_keys(all),
        nearest_key(all) {}
  /// Each operation's arithmetic as the implementation's kernels declare it.
  OperationArithmetic(const SessionArithmetic& declared)
      : window_attention(reference::arithmetic_of(declared.window_attention)),
        change_scores(reference::arithmetic_of(declared.change_scores)),
        projected_value_norms(reference::arithmetic_of(declared.projected_value_norms)),
        projected_value_norms_l2(reference::arithmetic_of(declared.projected_value_norms_l2)),
        attention(reference::arithmetic_of(declared.attention)),
        nearest_keys(reference::arithmetic_of(declared.nearest_keys)),
        nearest_key(reference::arithmetic_of(declared.nearest_key)) {}

  static reference::Arithmetic of_scores(reference::Arithmetic arithmetic) {
    arithmetic.splits = 0;
    if (arithmetic.tile > 0) arithmetic.tile = 0;  // sums in any order may have been declared
    return arithmetic;
  }

  const reference::Arithmetic& norms(Norm norm) const {
    return norm == Norm::l1 ? projected_value_norms : projected_value_norms_l2;
  }

  reference::Arithmetic window_attention;
  reference::Arithmetic change_scores;
  reference::Arithmetic projected_value_norms;  ///< in L1
  reference::Arithmetic projected_value_norms_l2;
  reference::Arithmetic attention;
  reference::Arithmetic nearest_keys;
  reference::Arithmetic nearest_key;
};

/// The configuration of a recorded run, and the arithmetic that computed it.
struct TestedImplementation {
  Policy policy;
  int64_t entries = 0;  ///< the layer's budget, in entries per KV head
  int64_t steps = 0;    ///< decode steps recorded, the first ones; at most the trace's
  OperationArithmetic arithmetic;
  /// Type of the cache that the numbers were computed from; inputs of another type were rounded to it.
  Dtype storage = Dtype::f64;
  /// Type that merged entries are rounded to when they are put into the cache.
  Dtype merged_storage = Dtype::f64;
  /// [kv_heads]: each head's own budget; empty: `entries` for all.
  std::vector<int64_t> budgets = {};

  int64_t budget(int64_t kv_head) const { return budgets.empty() ? entries : budgets[kv_head]; }
};

}  // namespace kvbound::sim
