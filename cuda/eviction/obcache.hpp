// Scores of cache entries by the squared change of queries' outputs: OBCache's terms, and the exact change.
//
// The formulas are those of reference/eviction/obcache.hpp. With A the entry's weight, z its logit without
// votes, v its value, o the query's output and G the head's Gram matrix, a score is
//
//     w^2 (a^2 v G v - 2 a b v . (o G) + b^2 o G o)        value: w = A,        a = 1,     b = 0
//                                                          key:   w = A z,      a = 1,     b = 1
//                                                          joint: w = A,        a = 1 + z, b = z
//                                                          exact: w = A/(1-A),  a = 1,     b = 1
//
// For joint and exact the dominant entry of a query, which holds more than half of the attention, has a score
// of its own: it is formed from the output of the other entries, so that nothing cancels.
#pragma once

#include <cstdint>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/arithmetic.hpp>
#include <kvbound/reference/core/score_rules.hpp>

#include "snap_kv.hpp"

namespace kvbound::cuda {

/// What scoring needs to know of queries, one of each query head at a time; device memory.
struct MeasuredQueries {
  float* gram_outputs = nullptr;     ///< [queries, query_heads, head_dim]: o G; begins on 8 bytes
  float* output_norms = nullptr;     ///< [queries, query_heads]: o G o
  int64_t* dominant = nullptr;       ///< [queries, query_heads]: the dominant row, -1 for none
  float* dominant_scores = nullptr;  ///< [queries, query_heads]: its score; undefined where there is none
};

/// Queries after `causal_attention` over a cache; device memory.
struct AttendedQueries {
  int64_t window = 1;                  ///< queries of each query head
  const float* outputs = nullptr;      ///< [query_heads, window, head_dim]
  const float* logits = nullptr;       ///< [query_heads, capacity]; of one query of each query head
  const float* log_sum_exp = nullptr;  ///< [query_heads, window]
  DominantEntries dominants;  ///< [query_heads, window]; without rows for scores that treat all entries alike
};

inline namespace KVBOUND_CUDA_BUILD {

/// Measures the outputs of the queries, and scores their dominant entries.
///
/// gram       [query_heads, head_dim, head_dim]; null: the head's space
/// measured   of `window` queries of each query head; without queries.dominants.rows neither dominant rows
///            nor their scores are written
/// precision  fp32; error: as part of change_score_errors
/// throws     ShapeMismatch; InvalidPolicy for the change `slot`, by which no policy scores; DeviceError
template <Storage T>
void measure_queries(Change change, const CacheView<T>& cache, const AttendedQueries& queries,
                     const float* gram, int64_t query_heads, const MeasuredQueries& measured, Stream stream);

/// reference::window_scores: the prompt's scores, summed over the window's queries, by one
/// pass over keys and values.
///
///     scores[h, j] = sum_{i in window, j visible to i} score^h_ij
///
/// values       [kv_heads, tokens, head_dim]
/// log_sum_exp  [query_heads, window], natural log
/// measured     of the window's queries; for `value` nothing is read
/// norms        [query_heads, tokens], from squared_norms in the same space
/// scores       [query_heads, tokens], 0 for a token in every query's future
/// precision    change_score_arithmetic<T>(); error: window_score_errors in
///              reference/bounds/obcache_errors.hpp
/// determinism  bits do not depend on a device's size, but on whether it has wgmma
/// throws       ShapeMismatch; InvalidPolicy for the change `slot`; DeviceError
template <Storage T>
void window_change_scores(Change change, const WindowView<T>& window, DeviceTensor<const T> values,
                          const float* log_sum_exp, const MeasuredQueries& measured, const float* norms,
                          float* scores, Stream stream);

/// The scores of a cache's entries by one query per query head, from the logits that `attention` wrote.
///
/// queries      one of each query head; logits and log_sum_exp are read
/// measured     of one query; for `value` nothing is read
/// norms        [query_heads, capacity]
/// scores       [query_heads, capacity]; columns from `entries` on are left as they are
/// precision    fp32; error: change_score_errors in reference/bounds/obcache_errors.hpp
/// throws       ShapeMismatch; InvalidPolicy for the change `slot`; DeviceError
template <Storage T>
void step_change_scores(Change change, const CacheView<T>& cache, const AttendedQueries& queries,
                        const MeasuredQueries& measured, const float* norms, int64_t query_heads,
                        float* scores, Stream stream);

/// The arithmetic of window_change_scores over so many tokens, and of step_change_scores over as many
/// entries, if outputs come from `attention` and log-sum-exps from it or from window_log_sum_exp.
template <Storage T>
KernelArithmetic change_score_arithmetic(int64_t tokens, int64_t head_dim);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
