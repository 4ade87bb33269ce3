// Appends a decode step's entry to the cache.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// keys[g, entries[g], :] = new_keys[g, 0, :], values likewise, padding included; then entries[g] grows by 1. Copies bits.
///
/// new_keys, new_values  [kv_heads, 1, head_dim]
/// keys, values          [kv_heads, capacity, head_dim]; the caller ensures entries[g] < capacity. A full head is left
///                       as it is
/// entries               [kv_heads], device memory
/// throws                ShapeMismatch; DeviceError
template <Storage T>
void append(DeviceTensor<const T> new_keys, DeviceTensor<const T> new_values, DeviceTensor<T> keys,
            DeviceTensor<T> values, int64_t* entries, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
