// What a model's logits say about the next token, and how two such distributions differ.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvbound::sim {

/// ln p of every token, in double precision.
///
///     ln p_i = z_i - ln sum_j exp z_j
///
/// logits   [vocabulary], finite
/// returns  [vocabulary], in nats, <= 0 but for rounding
/// throws   NonFinite if a logit is not finite
std::vector<double> log_probabilities(std::span<const float> logits);

/// -ln p of one token, without cancellation where p is nearly 1.
///
///     -ln p_i = ln(1 + sum_{j != i} exp(z_j - z_i))
///
/// logits   as above
/// returns  in nats, >= 0
double negative_log_likelihood(std::span<const float> logits, int64_t token);

/// The Kullback-Leibler divergence of q from p, as a sum of terms that are not negative, so that a small
/// divergence is not a difference of large sums.
///
///     KL(p || q) = sum_i p_i ln(p_i / q_i) = sum_i p_i (d_i + exp(-d_i) - 1),   d_i = ln p_i - ln q_i
///
/// (both p and q sum to 1). 0 if and only if all d_i are 0.
///
/// log_p, log_q  [vocabulary]
/// returns       in nats, >= 0
double divergence(std::span<const double> log_p, std::span<const double> log_q);

/// The index of the largest logit (ties: the smaller index).
int64_t most_likely(std::span<const float> logits);

}  // namespace kvbound::sim
