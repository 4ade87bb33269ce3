// The implementation whose recorded numbers are compared with the reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/arithmetic.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/policy.hpp>

namespace kvbound::sim {

/// The arithmetic of a tested implementation's operations: the same for all where nothing is known of its kernels.
struct OperationArithmetic {
  OperationArithmetic(const reference::Arithmetic& all)
      : window_attention(all), projected_value_norms(all), attention(all) {}
  /// As its kernels declare it.
  OperationArithmetic(const SessionArithmetic& declared)
      : window_attention(reference::arithmetic_of(declared.window_attention)),
        projected_value_norms(reference::arithmetic_of(declared.projected_value_norms)),
        attention(reference::arithmetic_of(declared.attention)) {}

  reference::Arithmetic window_attention;
  reference::Arithmetic projected_value_norms;
  reference::Arithmetic attention;
};

/// What was recorded, and how it was computed.
struct TestedImplementation {
  Policy policy;
  int64_t entries = 0;  ///< the layer's budget, in entries per KV head
  int64_t steps = 0;    ///< decode steps recorded, the first ones; at most the trace's
  OperationArithmetic arithmetic;
  /// Of the cache that the numbers were computed from: inputs that are not of this type were rounded to it.
  Dtype storage = Dtype::f64;
  /// [kv_heads]: the budgets of heads that have each its own; empty: `entries` for all.
  std::vector<int64_t> budgets = {};

  int64_t budget(int64_t kv_head) const { return budgets.empty() ? entries : budgets[kv_head]; }
};

}  // namespace kvbound::sim
