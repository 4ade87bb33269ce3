// Attention over a compressed cache: of a decode step's queries, and of those of a cache's last tokens.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/arithmetic.hpp>

namespace kvbound::cuda {

/// Where decode attention puts its results; device memory.
struct AttentionResult {
  float* output = nullptr;       ///< [query_heads, head_dim], rows without padding, begins on 16 bytes
  float* log_sum_exp = nullptr;  ///< [query_heads], natural log, votes included
  float* logits =
      nullptr;  ///< [query_heads, capacity]: scale * q . k, votes not included; null: not written.
                ///< Columns from `entries` on are left as they are
};

/// The dominant entry of each query, which holds more than half of its attention, and the attention to the
/// other entries; device memory.
struct DominantEntries {
  int64_t* rows = nullptr;  ///< [queries]: the cache's row, -1: none; null: not wanted
  float* logits =
      nullptr;  ///< [queries]: its scale * q . k, votes not included; undefined where there is none
  float* others_output = nullptr;  ///< [queries, head_dim]: without the dominant entry; begins on 16 bytes
  float* others_log_sum_exp = nullptr;  ///< [queries]: likewise
};

inline namespace KVBOUND_CUDA_BUILD {

/// Bytes that `attention` needs for a cache of this capacity.
///
/// segments  as in CacheView, which query_heads and kv_heads are those of
int64_t attention_workspace(int64_t query_heads, int64_t kv_heads, int64_t head_dim, int64_t capacity,
                            int64_t segments = 1);

/// One query per query head over its KV head's cache: reference::attention for all heads of a layer at once.
///
/// queries    [1, query_heads, head_dim], head_dim 1..256; query head h reads KV head
///            h / (query_heads / kv_heads)
/// cache      a segment's kv_heads times its capacity are at most 2^31 - 65; at most 65,535 segments
/// an empty cache gives output 0 and log_sum_exp -infinity, and so does one whose log_votes are all -infinity
/// precision  attention_arithmetic(); error: reference/bounds/error_bounds.hpp
/// equal keys get equal logits to the last bit, wherever they stand
/// the same entries give the same bits, whatever the device, the capacity and the other segments; a head's
/// bits also depend on how many entries the segment's other KV heads have: the same blocks share them
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void attention(DeviceTensor<const T> queries, const CacheView<T>& cache, double scale,
               const AttentionResult& result, Workspace workspace, Stream stream);

/// Bytes that `causal_attention` needs for so many queries of each query head: 4 round_up(head_dim, 8) + 12
/// for each query and split of its KV head. 32 queries of 32 heads of 128 numbers over 8 KV heads take 138 MB
/// at a capacity of 131,072, a quarter of the cache.
int64_t causal_attention_workspace(int64_t query_heads, int64_t window, int64_t kv_heads, int64_t head_dim,
                                   int64_t capacity, int64_t segments = 1);

/// The queries of the last tokens of a cache, each over the entries up to its own: `attention`
/// for all of them at once.
///
/// queries    [query_heads, window, head_dim]: query i sees the first
///            entries[g] - (window - 1 - i) rows of its KV head
/// rows       in the order of their positions; values must be finite, also in rows that a query does
///            not see, whose weight is 0
/// result     of all queries: output [query_heads, window, head_dim], log_sum_exp
///            [query_heads, window], logits [query_heads, window, capacity]; logits of rows that a
///            query does not see are left as they are
/// dominants  of all queries, [query_heads, window]. Of a cache with votes they need result.logits
/// a query that sees no row gives output 0 and log_sum_exp -infinity, and no dominant entry
/// throws     ShapeMismatch; DeviceError
/// otherwise as `attention`, whose bits one query of each head gives, if no more than
/// 16 heads share a KV head
template <Storage T>
void causal_attention(DeviceTensor<const T> queries, const CacheView<T>& cache, double scale,
                      const AttentionResult& result, const DominantEntries& dominants, Workspace workspace,
                      Stream stream);

/// The arithmetic of `attention` over at most so many entries.
template <Storage T>
KernelArithmetic attention_arithmetic(int64_t entries, int64_t head_dim);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
