// Minimal work of device operations: every input is read once and every result written once, for caches
// stored in 16 bits; a product and a sum are two FLOP. Repeated reads by a kernel are not counted.
#pragma once

#include <cstdint>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::sim {

struct DeviceWork {
  double bytes = 0;
  double flop = 0;
};

namespace detail {
// Bytes of stored numbers (2 each), results in single precision (4 each), and indices or counts (8 each).
constexpr double work_bytes(int64_t stored, int64_t singles, int64_t indices) {
  return 2 * static_cast<double>(stored) + 4 * static_cast<double>(singles) +
         8 * static_cast<double>(indices);
}
}  // namespace detail

/// cuda::attention over `entries` entries of every KV head; the logits are written, too.
///
///     bytes = 2 (2 G n d + H d) + 4 (H d + H + H n) + 8 G        FLOP = 4 H n d
///
/// H query heads, G KV heads, n entries, d head_dim
constexpr DeviceWork attention_work(const LayerShape& shape, int64_t entries) {
  const int64_t cache = shape.kv_heads * entries * shape.head_dim, query = shape.query_heads * shape.head_dim;
  return {detail::work_bytes(2 * cache + query, query + shape.query_heads + shape.query_heads * entries,
                             shape.kv_heads),
          4 * static_cast<double>(query * entries)};
}

/// cuda::window_log_sum_exp for w window queries over n tokens.
///
///     bytes = 2 (G n d + H w d) + 4 H w                          FLOP = 2 H w n d
constexpr DeviceWork window_log_sum_exp_work(const LayerShape& shape, int64_t window, int64_t tokens) {
  const int64_t queries = shape.query_heads * window;
  return {detail::work_bytes((shape.kv_heads * tokens + queries) * shape.head_dim, queries, 0),
          2 * static_cast<double>(queries * tokens * shape.head_dim)};
}

/// cuda::window_attention: the same, plus the mean per query head and token.
///
///     bytes = 2 (G n d + H w d) + 4 (H w + H n)                  FLOP = 2 H w n d
constexpr DeviceWork window_attention_work(const LayerShape& shape, int64_t window, int64_t tokens) {
  DeviceWork work = window_log_sum_exp_work(shape, window, tokens);
  work.bytes += detail::work_bytes(0, shape.query_heads * tokens, 0);
  return work;
}

/// cuda::window_change_scores for w window queries over n tokens: log-sum-exp, outputs and lengths are known.
///
///     bytes = 2 (2 G n d + H w d) + 4 (H w (d + 3) + 2 H n) + 8 H w              FLOP = 4 H w n d
constexpr DeviceWork window_change_scores_work(const LayerShape& shape, int64_t window, int64_t tokens) {
  const int64_t queries = shape.query_heads * window;
  return {detail::work_bytes((2 * shape.kv_heads * tokens + queries) * shape.head_dim,
                             queries * (shape.head_dim + 3) + 2 * shape.query_heads * tokens, queries),
          4 * static_cast<double>(queries * tokens * shape.head_dim)};
}

/// cuda::nearest_keys of n - b leaving entries among b kept ones, every KV head; the
/// lengths of keys are known.
///
///     bytes = 2 G n d + 4 G (n + n - b) + 8 G (2 (n - b) + 2)                    FLOP = 2 G (n - b) b d
constexpr DeviceWork nearest_keys_work(const LayerShape& shape, int64_t tokens, int64_t kept) {
  const int64_t leaving = tokens - kept;
  return {detail::work_bytes(shape.kv_heads * tokens * shape.head_dim, shape.kv_heads * (tokens + leaving),
                             shape.kv_heads * (2 * leaving + 2)),
          2 * static_cast<double>(shape.kv_heads * leaving * kept * shape.head_dim)};
}

/// cuda::projected_value_norms of n tokens.
///
///     bytes = 2 (G n d + H d D) + 4 H n                          FLOP = 2 H n d D        D model_dim
constexpr DeviceWork projected_value_norms_work(const LayerShape& shape, int64_t tokens) {
  const int64_t projection = shape.query_heads * shape.head_dim * shape.model_dim;
  return {detail::work_bytes(shape.kv_heads * tokens * shape.head_dim + projection,
                             shape.query_heads * tokens, 0),
          2 * static_cast<double>(projection * tokens)};
}

/// cuda::select_top: k of m scores in each of r rows.
///
///     bytes = 4 r m + 8 r (k + 1)
constexpr DeviceWork select_top_work(int64_t rows, int64_t cols, int64_t k) {
  return {detail::work_bytes(0, rows * cols, rows * (k + 1)), 0};
}

/// cuda::select_critical: k of m scores, s of them in stage one, which is a separate list.
///
///     bytes = 8 r m + 8 r (k + s + 2)
constexpr DeviceWork select_critical_work(int64_t rows, int64_t cols, int64_t k, int64_t stage_one) {
  return {detail::work_bytes(0, 2 * rows * cols, rows * (k + stage_one + 2)), 0};
}

/// cuda::compact of keys and of values; b entries of every KV head are kept.
///
///     bytes = 8 G b d + 16 G (b + 1)
constexpr DeviceWork compact_work(const LayerShape& shape, int64_t kept) {
  return {detail::work_bytes(4 * shape.kv_heads * kept * shape.head_dim, 0, 2 * shape.kv_heads * (kept + 1)),
          0};
}

}  // namespace kvbound::sim
