// The logits of a query head's recorded queries, one query after the other.
#pragma once

#include <cstdint>
#include <functional>

#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// Visits a query head's recorded queries in the order of their positions: those of the prompt, then
/// those of the decode steps.
///
///     logits[j] = scale * query . keys[j,:],   j = 0..position of the query
///
/// layer   [kv_heads, n + T, head_dim] keys; the queries of `head` sit at positions n - window_queries, ...
/// steps   number of decode steps, the first ones, 0..T. The logits of a query do not depend on it
/// visit   called with the query's index among the recorded ones and its logits [position + 1], natural log;
///         they are overwritten after the call
/// throws  NonFinite if a logit is NaN or infinite
void visit_query_logits(const traces::Layer& layer, int64_t head, int64_t steps,
                        const std::function<void(int64_t query, VectorView logits)>& visit);

}  // namespace kvbound::sim
