// Where a query head's attention goes, and how concentrated it is.
#pragma once

#include <cstdint>

#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// Means over a query head's recorded queries.
struct AttentionProfile {
  double sink_mass = 0;      ///< attention on the first positions, 0..1
  int64_t top_position = 0;  ///< the position that attracts most attention on average (ties: the smaller one)
  double top_mass = 0;       ///< the attention that it attracts on average, 0..1
  double entropy = 0;        ///< of the attention weights, in nats
  double effective_entries = 1;  ///< exp(entropy): as many entries of equal weight have this entropy
  double relative_entropy = 0;   ///< mean of entropy / ln(visible entries), 0..1
};

/// Profiles one query head over all its recorded queries, of the prompt and of the decode steps.
///
///     A_ij              = exp(z_ij) / sum_{j' <= x_i} exp(z_ij'),  z = logits, x_i the position of query i
///     sink_mass         = mean_i sum_{j < min(sinks, x_i + 1)} A_ij
///     top_position      = argmax_j mean_i A_ij, over all n + T entries; A_ij = 0 for
///                       entries in a query's future
///     top_mass          = max_j mean_i A_ij
///     H_i               = -sum_j A_ij ln A_ij,  0 ln 0 = 0;  0 <= H_i <= ln(x_i + 1)
///     entropy           = mean_i H_i
///     effective_entries = exp(entropy), the geometric mean of exp(H_i)
///     relative_entropy  = mean_i H_i / ln(x_i + 1); 0 for a query that sees one entry
///
/// A position that is attended to because it is recent contributes little to top_mass: it
/// is recent for few queries.
///
/// layer   [window_queries + T] queries per head, at least one of the prompt
/// sinks   number of first positions, >= 1; a query that sees fewer has all its attention on them
/// throws  ShapeMismatch if sinks is below 1; NonFinite if a logit is NaN or infinite
/// source  attention sinks: StreamingLLM (arXiv:2309.17453), section 3
AttentionProfile attention_profile(const traces::Layer& layer, int64_t head, int64_t sinks);

}  // namespace kvbound::sim
