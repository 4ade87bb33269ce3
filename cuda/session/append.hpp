// Appends a decode step's entry to the cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>

namespace kvbound::cuda {

/// The rows of new keys, or of new values, of any storage type, and where they go; device memory. Strides are
/// in bytes, multiples of 16.
struct NewRows {
  const std::byte* from = nullptr;  ///< [kv_heads], a row each
  std::byte* to = nullptr;          ///< [kv_heads, capacity], or [pages, page_size], a row each
  int64_t from_stride = 0;
  int64_t slice_stride = 0, row_stride = 0;  ///< of `to`
};

/// A decode step's entries and the cache that they are appended to.
struct NewEntries {
  NewRows keys, values;
  int64_t row_bytes = 0;               ///< padding included
  const int64_t* positions = nullptr;  ///< [kv_heads], device memory
};

inline namespace KVBOUND_CUDA_BUILD {

/// new_keys, new_values  [kv_heads, 1, head_dim], head_dim 1..256
/// keys, values          [kv_heads, capacity, head_dim], or [pages, page_size, head_dim] by slots.pages
/// slots                 of that shape
/// positions             [kv_heads], device memory: of the new entries
/// throws                ShapeMismatch
template <Storage T>
NewEntries new_entries(DeviceTensor<const T> new_keys, DeviceTensor<const T> new_values, DeviceTensor<T> keys,
                       DeviceTensor<T> values, const CacheSlots& slots, const int64_t* positions);

/// Copies each KV head's new key and value, padding included, to the head's free slot, or
/// else behind its last slot.
///
///     s = free[g] >= 0 ? free[g] : entries[g]++
///     keys[g, s, :] = new_keys[g, 0, :],   values likewise
///     slots.positions[g, s] = positions[g],   votes[g, s] = 1,   newest[g] = s,   free[g] = -1
///
/// slots      the caller ensures that every head has a free slot or room for one. A full head is left as it
///            is, and its `newest` is set to -1
/// key_norms  [kv_heads, capacity], device memory: receives key_norms of the new keys; null: they are not
///            kept
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void append(DeviceTensor<const T> new_keys, DeviceTensor<const T> new_values, DeviceTensor<T> keys,
            DeviceTensor<T> values, const CacheSlots& slots, const int64_t* positions, float* key_norms,
            Stream stream);

/// Writes each query head's number to the slot of its KV head's newest entry:
/// appended[h, newest[g]] = numbers[h]. Copies bits; a head whose `newest` is -1 is left as it is.
///
/// numbers   [query_heads], device memory; kv_heads divides query_heads
/// appended  [query_heads, capacity]
/// throws    ShapeMismatch; DeviceError
void append_numbers(const float* numbers, int64_t query_heads, const CacheSlots& slots, float* appended,
                    Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
