// The merging methods that KeepKV is measured against: weighted means of keys and values, without votes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/policy.hpp"
#include "core/view.hpp"

namespace kvbound::reference {

/// D2O's weights of a group.
///
///     w_j = exp(cos(k_j, k_c)) / sum_i exp(cos(k_i, k_c)),   c the first, cos(k_c, k_c) = 1
///
/// keys     [members, head_dim], the target first; the cosine with a zero key is 0
/// returns  [members], sum 1
/// throws   ShapeMismatch for no members; NonFinite if a key is NaN or infinite
/// source   D2O (arXiv:2406.13035)
std::vector<double> similarity_weights(MatrixView keys);

/// KVMerger's weights of a group.
///
///     w_j = exp(-||k_j - k_c||^2 / (2 sigma^2)) / sum,   sigma^2 = mean over the others of ||k_j - k_c||^2
///
/// keys     [members, head_dim], the target first
/// returns  [members], sum 1; all equal for sigma = 0. Whatever the keys' size: neither squares nor sigma^2 overflow or vanish
/// throws   ShapeMismatch for no members; NonFinite if a key is NaN or infinite
/// source   KVMerger (arXiv:2407.08454)
std::vector<double> gaussian_weights(MatrixView keys);

/// sum_j weights_j rows[j,:].
std::vector<double> weighted_mean(VectorView weights, MatrixView rows);

/// With which probability CaM spreads a leaving value.
///
///     min(1, A_e / mean of A over those that share it);   0/0 is 0, x/0 is 1
///
/// following  [count >= 1]: their attention weights
/// throws     ShapeMismatch for none; NonFinite
double spread_probability(double attention_weight, VectorView following);

/// Whether it does: a draw that depends on these three alone.
///
///     (mix(mix(mix(seed + G) + kv_head + G) + position + G) >> 11) 2^-53 < probability
///
/// mix: SplitMix64's finaliser, G = 0x9e3779b97f4a7c15, everything modulo 2^64
bool spreads(double probability, int64_t seed, int64_t kv_head, int64_t position);

}  // namespace kvbound::reference
