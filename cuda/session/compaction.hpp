// Compaction: copies each KV head's kept entries to the front of its cache.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// compacted[g, i, :] = rows[g, kept[g, i], :] for i < count[g], padding included. Copies bits.
///
/// rows       [kv_heads, tokens, head_dim]
/// kept       [kv_heads, kept_stride], device memory: positions in 0..tokens-1
/// count      [kv_heads], device memory: 0..compacted.rows
/// compacted  [kv_heads, capacity, head_dim], not the memory of rows; rows from count[g] on are left as they are
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void compact(DeviceTensor<const T> rows, const int64_t* kept, int64_t kept_stride, const int64_t* count,
             DeviceTensor<T> compacted, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
