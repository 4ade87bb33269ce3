// Checks that a trace is consistent: whether its queries, keys and values give the attention output that
// the model itself computed.
#pragma once

#include <cstdint>

#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// How one layer's recorded attention output compares with the output recomputed from
/// queries, keys and values.
struct OutputAgreement {
  double worst_share = 0;  ///< largest |recorded - recomputed| / bound
  double worst_error = 0;  ///< |recorded - recomputed| there
  double worst_bound = 0;
  int64_t query_head = 0;
  int64_t row = 0;  ///< of the recorded queries
  int64_t column = 0;

  bool agrees() const { return worst_share <= 1; }
};

/// Compares every recorded query's output, per element, with an error bound for a model that
/// computes in single precision.
///
///     |recorded - o_c| <= E (1 + u_s) + u_s |o_c| + eta_s
///     E = (e^(2d) (1 + 2 gamma_{x+8}) - 1) sum_j a_j |v_jc| + eta (x + 2 + sum_j |v_jc|)
///     d = gamma_{D+4} max_j scale |q|.|k_j|
///
/// for a query at position x and head_dim D, with u = 2^-24, eta = 2^-149, gamma_k = k u / (1 - k u), and
/// u_s, eta_s the unit roundoff and smallest subnormal of the output's storage type. A logit takes D + 2
/// roundings, and its distance to the largest logit two more, so logits are off by at most d and weights by
/// at most a factor e^(2d). Softmax and sum add at most 2 (x + 8) roundings, and each term may underflow. The
/// errors of the recomputation in double precision are negligible.
///
/// layer  must have an attention_output
OutputAgreement verify_attention_output(const traces::Layer& layer);

}  // namespace kvbound::sim
