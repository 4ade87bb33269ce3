// What a decode step's merges change beside rows of the cache, and what is recorded of them.
#pragma once

#include <cstdint>

#include <kvbound/cuda/merging/weighted_mean.hpp>
#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>

namespace kvbound::cuda {

/// What is known of each KV head's merged entry; device memory. Where nothing has
/// merged, all is left as it is.
template <Storage T>
struct StepChanges {
  float* key_norms = nullptr;    ///< [kv_heads, capacity]: the lengths of the cache's keys
  DeviceTensor<T> keys, values;  ///< [kv_heads, 1, head_dim]: receive its rows
  float* votes = nullptr;        ///< [kv_heads]: receives its votes; null: entries have none
  const float* log_scores =
      nullptr;                     ///< [query_heads, capacity]: ln s^ before the merge; null: not predicted
  float* kept_scores = nullptr;    ///< [query_heads]: receives that of the entry that was kept
  float* member_scores = nullptr;  ///< [query_heads]: receives that of the entry that was evicted
};

inline namespace KVBOUND_CUDA_BUILD {

/// Brings the merged entry's length up to date, and copies what is recorded of it.
///
///     key_norms[g, slot(g)] = || keys[g, slot(g), :] ||
///
/// keys, values  [kv_heads, capacity, head_dim]: the cache, head_dim 1..256
/// slots         of that shape
/// merged        from join_nearest: one kept entry of each KV head, with one member, or none
/// precision     of lengths that of key_norms; all else is copied
/// throws        ShapeMismatch; DeviceError
template <Storage T>
void keep_changes(DeviceTensor<const T> keys, DeviceTensor<const T> values, const CacheSlots& slots,
                  const MergedEntries& merged, int64_t query_heads, const StepChanges<T>& changes,
                  Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
