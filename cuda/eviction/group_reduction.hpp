// Reduction of scores over the query heads that share a KV head.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/reference/core/score_rules.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// reference::reduce_group, heads added in their order.
///
/// scores     [query_heads, cols], device memory, without gaps
/// reduced    [query_heads / group_size, cols], likewise
/// precision  fp32; error: group_errors in reference/bounds/group_errors.hpp
/// throws     ShapeMismatch unless group_size divides query_heads; DeviceError
void reduce_group(const float* scores, int64_t query_heads, int64_t cols, int64_t group_size,
                  GroupReduction reduction, float* reduced, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
