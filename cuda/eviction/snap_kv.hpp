// SnapKV's and H2O's scores: the mean or summed attention of the observation window's queries to every token.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/arithmetic.hpp>
#include <kvbound/reference/core/host_rules.hpp>

namespace kvbound::cuda {

inline namespace KVBOUND_CUDA_BUILD {

/// Bytes that `window_log_sum_exp` needs.
int64_t window_log_sum_exp_workspace(int64_t query_heads, int64_t window, int64_t tokens);

/// The log-sum-exp of every window query, for callers that do not have it from the prefill.
///
///     log_sum_exp[h, i] = ln sum_{j visible to i} exp(scale * queries[h,i,:] . keys[j,:])
///
/// log_sum_exp  [query_heads, window], natural log
/// precision    window_arithmetic<T>(); error: reference/bounds/error_bounds.hpp
/// determinism  equal keys get equal logits; bits do not depend on a device's size, but on whether the wgmma
///              kernels can take the shapes on it
/// throws       ShapeMismatch, also for a window of no query or of more than there are tokens; DeviceError
template <Storage T>
void window_log_sum_exp(const WindowView<T>& window, float* log_sum_exp, Workspace workspace, Stream stream);

/// The mean or summed attention of the window's queries to each token, by one pass over the keys:
/// reference::window_attention, or window_attention_sums.
///
///     weights[h, j] = sum_i exp(scale * queries[h,i,:] . keys[j,:] - log_sum_exp[h, i])
///
/// and for the mean 1 / window times that.
///
/// log_sum_exp  [query_heads, window], natural log
/// weights      [query_heads, tokens], 0 for a token in a query's future
/// precision, determinism, throws: as above
template <Storage T>
void window_attention(const WindowView<T>& window, const float* log_sum_exp, WindowReduction reduction,
                      float* weights, Stream stream);

/// The arithmetic of window_log_sum_exp and window_attention over so many tokens, of whatever kernel: on
/// tensor cores for 16-bit types.
template <Storage T>
KernelArithmetic window_arithmetic(int64_t tokens, int64_t head_dim);

/// reference::max_pool. Exact; NaN among the neighbours gives NaN.
///
/// scores, pooled  [rows, cols], device memory, scores with row_stride numbers from row to row, pooled
///                 without gaps; not the same memory
/// width           the pool's, odd
/// throws          ShapeMismatch for a width that is even or below 1, and where
///                 row_stride < cols; DeviceError
void max_pool(const float* scores, int64_t rows, int64_t cols, int64_t row_stride, int64_t width,
              float* pooled, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
