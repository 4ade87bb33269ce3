// Compaction: copies each KV head's kept entries to the front of its cache.
#pragma once

#include <cstdint>

#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// compacted[g, i, :] = rows[g, kept[g, i], :] for i < count[g], padding included. Copies bits.
///
/// rows       [kv_heads, tokens, head_dim]
/// kept       [kv_heads, kept_stride], device memory: positions in 0..tokens-1
/// count      [kv_heads], device memory: 0..compacted.rows
/// compacted  [kv_heads, capacity, head_dim], not the memory of rows; rows from
///            count[g] on are left as they are
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void compact(DeviceTensor<const T> rows, const int64_t* kept, int64_t kept_stride, const int64_t* count,
             DeviceTensor<T> compacted, Stream stream);

/// The same of keys and of values, by one launch, also to pages.
///
/// keys, values  of one shape, as are compacted_keys and compacted_values
/// pages         of compacted_keys and compacted_values, which then are [pages, page_size, head_dim]
template <Storage T>
void compact(DeviceTensor<const T> keys, DeviceTensor<const T> values, const int64_t* kept,
             int64_t kept_stride, const int64_t* count, DeviceTensor<T> compacted_keys,
             DeviceTensor<T> compacted_values, Stream stream, const PageTable& pages = {});

/// compacted[r, i] = numbers[r, kept[g, i]] for i < count[g], where row r is one of KV head g's: the kept
/// entries' scores or norms. Copies bits.
///
/// numbers          [rows, tokens]; kv_heads divides rows
/// kept, count      as above
/// compacted        [rows, capacity], not the memory of numbers; columns from
///                  count[g] on are left as they are
/// throws           ShapeMismatch; DeviceError
void compact_numbers(NumberRows<const float> numbers, int64_t kv_heads, const int64_t* kept,
                     int64_t kept_stride, const int64_t* count, NumberRows<float> compacted, Stream stream);

/// The positions of some slots of a cache: positions[g, i] = slots.positions[g, chosen(g, i)]
/// for i < chosen.count[g].
///
/// positions  [kv_heads, chosen.stride], device memory
/// throws     ShapeMismatch; DeviceError
void compact_positions(const CacheSlots& slots, const PositionLists& chosen, int64_t* positions,
                       Stream stream);

/// The inverse: to[r, kept[g, i]] = numbers[r, i] for i < count[g]. Copies bits.
///
/// numbers      [rows, most]; kv_heads divides rows
/// kept, count  as above, different rows of `to`
/// to           [rows, capacity]; other columns are left as they are
/// throws       ShapeMismatch; DeviceError
void scatter_numbers(NumberRows<const float> numbers, int64_t kv_heads, const int64_t* kept,
                     int64_t kept_stride, const int64_t* count, NumberRows<float> to, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
