// Does a recording mean what it says: do its queries, keys and values give the attention output that the
// model itself computed?
#pragma once

#include <cstdint>

#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// How one layer's recorded attention output compares with the one recomputed from queries, keys and values.
struct OutputAgreement {
  double worst_share = 0;  ///< largest |recorded - recomputed| / bound
  double worst_error = 0;  ///< |recorded - recomputed| there
  double worst_bound = 0;
  int64_t query_head = 0;
  int64_t row = 0;  ///< of the recorded queries
  int64_t column = 0;

  bool agrees() const { return worst_share <= 1; }
};

/// Compares every recorded query's output, per element, with a bound for a model that works in single
/// precision.
///
///     |recorded - o_c| <= (2 d + 2 gamma_{x+8}) sum_j a_j |v_jc| + u |o_c|,  d = gamma_{D+2} max_j scale
///     |q|.|k_j|
///
/// for a query at position x, head_dim D, u = 2^-24 (or the unit roundoff of what it was stored in, if
/// larger) and gamma_k = k u' / (1 - k u'), u' = 2^-24: logits may be off by d, so weights by a factor
/// e^(2d); softmax and sum add at most x + 8 roundings. The recomputation in double adds nothing that counts.
///
/// layer  with attention_output
OutputAgreement verify_attention_output(const traces::Layer& layer);

}  // namespace kvbound::sim
