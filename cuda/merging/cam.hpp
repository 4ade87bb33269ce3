// CaM on the device: the value of an evicted entry is dropped or spread over the entries that follow it.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/policy.hpp>

#include "merge_targets.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The mean of the attention weights of a KV head's query heads, for each entry of a cache:
/// reference::mean_attention.
///
/// logits, log_sum_exp  [query_heads, capacity], [query_heads]: from `attention`
/// count                [kv_heads], device memory: entries
/// mean                 [kv_heads, capacity]; of entries behind `count` it is left as it is
/// precision            fp32; error: group_mean_errors in reference/bounds/error_bounds.hpp,
///                      and those of the weights
/// throws               ShapeMismatch; DeviceError
void mean_attention(const float* logits, const float* log_sum_exp, int64_t query_heads, int64_t kv_heads,
                    int64_t capacity, const int64_t* count, float* mean, Stream stream);

/// Bytes that `spread_leaving` needs.
///
/// stride  of the leaving entries
int64_t spread_leaving_workspace(int64_t kv_heads, int64_t stride, int64_t capacity, int64_t head_dim);

/// Spreads the values of all entries of a prompt that are not kept over those of the kept ones:
/// reference::spread_leaving.
///
///     v_j += sum of v_e / count_e  over the entries e before j of which j is one of the
///                                  `count_e` next kept ones,
///            count_e <= neighbours, and for which `reference::spreads` draws true
///
/// attention  [kv_heads, tokens], device memory: mean_attention of the last query
/// leaving    ascending positions, from entries_left_out
/// kept       ascending positions of the rows of the cache
/// values     [kv_heads, tokens, head_dim], head_dim 1..256
/// cache      [kv_heads, capacity, head_dim], capacity = kept.stride: the kept entries' values
/// spread     [kv_heads, leaving.stride], device memory: 1 for entries whose values were spread, else 0
/// status     set to 1 if an attention weight is NaN or infinite, or a value does not fit the storage type
/// precision  fp32, values rounded once to the storage type. A draw may differ from the reference's only
///            where rounding moves the probability across the drawn number
/// throws     ShapeMismatch; DeviceError
/// source     CaM (ICML 2024, "CaM: Cache Merging for Memory-efficient LLMs Inference")
template <Storage T>
void spread_leaving(const Cam& options, const float* attention, const PositionLists& leaving,
                    const PositionLists& kept, DeviceTensor<const T> values, DeviceTensor<T> cache,
                    uint8_t* spread, int* status, Workspace workspace, Stream stream);

/// The same during decoding, for the entry of every KV head that was evicted last: reference::spread_entry.
///
/// attention    [kv_heads, capacity], device memory: mean_attention of the step's query
/// slots        `free` is the evicted entry's slot, -1 for none; positions below 2^31
/// cache        [kv_heads, capacity, head_dim]: values
/// changed      receives the slots of the entries that share the value, ascending;
///              stride >= min(neighbours, capacity)
/// merged_into  [kv_heads]: the smallest of their positions, kNotMerged or kNothingEvicted
/// status, precision, throws, source: as above
template <Storage T>
void spread_entry(const Cam& options, const float* attention, const CacheSlots& slots, DeviceTensor<T> cache,
                  const PositionLists& changed, int64_t* merged_into, int* status, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
