// Attention of successive queries to all positions up to their own, in single precision.
#pragma once

#include <cstdint>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::traces {

/// A KV head's cache.
struct CachedHead {
  SingleMatrixView keys, values;  ///< [tokens, head_dim]
};

/// Blocked: memory is linear in the number of tokens. In single precision, sums of
/// softmaxes in double.
///
///     z_ij = scale q_i . k_j for j <= first + i,   outputs[i,:] = sum_j softmax_j(z_ij) v_j
///
/// heads    [kv_heads], with a row for every position up to the last query's
/// queries  [rows, query_heads * head_dim]; query head h reads KV head h / (query_heads / kv_heads)
/// first    position of the first query
/// outputs  as queries
void causal_attention(std::span<const CachedHead> heads, SingleMatrixView queries, int64_t first,
                      double scale, MutableSingleMatrixView outputs);

}  // namespace kvbound::traces
