// The division of a layer's budget among its KV heads, on the device.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/reference/core/policy.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The most scores of all KV heads together that adakv_budgets takes.
inline constexpr int64_t kMostLayerScores = int64_t{1} << 30;

/// reference::adakv_budgets: budgets in proportion to how many of the layer's largest scores each head has.
///
/// scores      [kv_heads, cols], device memory, row_stride numbers from row to row; kv_heads
///             cols <= kMostLayerScores
/// candidates  [kv_heads], device memory: the number of candidates that each head would keep, 0..cols
/// budgets     [kv_heads], device memory: the number that it keeps, with the same sum
/// status      set to 1 if a score is NaN, else left as it is
/// exact; ties: smaller head, then smaller index; the same bits always
/// throws      ShapeMismatch; DeviceError
void adakv_budgets(const AdaKv& options, const float* scores, int64_t kv_heads, int64_t cols,
                   int64_t row_stride, const int64_t* candidates, int64_t* budgets, int* status,
                   Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
