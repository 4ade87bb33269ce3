// The change of one query's output when its cache is compressed, and bounds on that change.
//
// Everything here is a function of one vector w. With A the attention weights over the whole cache, N the
// kept set, Sigma the mass of the kept entries and e that of the evicted ones, the change of the output is
//
//     o - o^ = sum_i w_i values[i,:] W^O,   w_i = A_i if i is evicted, -(e / Sigma) A_i if i is kept,
//
// so L = || sum_i w_i V_i || <= sum_i |w_i| ||V_i|| = theta: CriticalKV's Theorem 3.3 as a triangle
// inequality. These forms have no cancellation. The papers' own forms, which subtract nearly equal numbers,
// are in proofs/theorems/as_printed.hpp.
//
// In all functions: attention_weights [tokens], >= 0, any positive sum (1 in exact arithmetic);
// projected_value_norms [tokens], ||values[i,:] W^O|| in any one norm; sets are ascending indices of tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

using Indices = std::span<const int64_t>;

/// The attention mass of the given entries.
///
///     mass = sum_{i in entries} A_i
///
/// returns  0 for no entries
double attention_mass(VectorView attention_weights, Indices entries);

/// The attention weights of the kept entries, renormalised after the others were evicted.
///
///     A'_i = A_i / sum_{j in kept} A_j  for i in kept, 0 elsewhere
///
/// returns  [tokens], sum 1
/// throws   NonFinite if the kept entries hold no mass
/// source   CriticalKV (arXiv:2502.03805), Theorem 3.2
/// proof    proofs/critical_kv.md#ckv-3.2
std::vector<double> kept_attention_weights(VectorView attention_weights, Indices kept);

/// The signed weights with which the values enter the output's change.
struct EvictionWeights {
  std::vector<double> weights;  ///< [tokens]: A_i where evicted, -evicted_mass * A'_i where kept
  double kept_mass = 0;
  double evicted_mass = 0;  ///< summed directly, not 1 - kept_mass
};

/// The signed weights w of the output's change (formula above), for one query.
///
///     w_i = A_i if i is evicted, -e A'_i if i is kept,   A' = softmax of the kept logits = A / Sigma
///
/// logits             [tokens], natural log; attention_weights is their softmax. Sigma may
///                    underflow to 0 where the evicted logits are larger by several hundred; A',
///                    computed from the logits, does not
/// kept               at least one entry
/// throws             ShapeMismatch; NonFinite if no entry is kept
/// source             CriticalKV, Theorem 3.3; the form without cancellation is ours
/// proof              proofs/critical_kv.md#ckv-stable
EvictionWeights eviction_weights(VectorView logits, VectorView attention_weights, Indices kept);

/// The same for weights that are not the softmax of known logits, such as the mean of
/// attention weights over a window.
///
/// throws             NonFinite if the kept entries hold no mass
EvictionWeights eviction_weights(VectorView attention_weights, Indices kept);

/// The output perturbation L of one query and head, in the L1 norm.
///
///     L = || sum_i w_i values[i,:] * output_projection ||_1
///
/// eviction           w [tokens], from eviction_weights
/// values             [tokens, head_dim]     one KV head
/// output_projection  [head_dim, model_dim]  this query head's rows of W^O
/// returns            hidden-state units, >= 0
/// throws             ShapeMismatch
/// proof              proofs/critical_kv.md#ckv-stable
double output_perturbation(const EvictionWeights& eviction, MatrixView values, MatrixView output_projection);

/// The upper bound theta on the output perturbation, in the norm in which projected_value_norms were taken.
///
///     theta = sum_i |w_i| ||V_i|| = sum_{evicted} A_i ||V_i|| + (e / Sigma) sum_{kept} A_i ||V_i||
///
/// throws   ShapeMismatch
/// source   CriticalKV, Theorem 3.3
/// proof    proofs/critical_kv.md#ckv-3.3
double perturbation_bound(const EvictionWeights& eviction, VectorView projected_value_norms);

/// Stage two's bound theta^ >= theta, with stage one's mass in place of the kept mass.
///
///     theta^ = C' - (2 - 1/sigma) S''
///            = sum_{evicted} A_i ||V_i|| + ((1 - sigma) / sigma) sum_{kept} A_i ||V_i||
///
/// stage_one  the entries of stage one and the always-kept entries; sigma is their mass
/// kept       stage_one and stage two's entries
/// returns    >= theta. Keeping the largest A_i ||V_i|| in stage two minimises the bound only if sigma >= 1/2
/// throws     ShapeMismatch; NonFinite if sigma is 0
/// source     CriticalKV, Theorem 3.5
/// proof      proofs/critical_kv.md#ckv-3.5
double stage_two_bound(VectorView attention_weights, VectorView projected_value_norms, Indices stage_one,
                       Indices kept);

/// The bound theta^_relax >= theta^ that selecting by attention alone minimises (if sigma >= 1/2).
///
///     theta^_relax = C' - M (2 - 1/sigma) sum_{stage two} A_i,   M = min_i ||V_i||
///
/// stage_one, kept, throws: as in stage_two_bound
/// source     CriticalKV, appendix E
/// proof      proofs/critical_kv.md#ckv-e.1
double attention_only_bound(VectorView attention_weights, VectorView projected_value_norms, Indices stage_one,
                            Indices kept);

/// The sums of absolute terms of one query head from which bounds on rounding are computed,
/// the same for all queries.
struct RoundingScale {
  int64_t head_dim = 0;
  int64_t model_dim = 0;
  double projection_sum = 0;                 ///< sum_cj |W^O[c,j]|
  std::vector<double> absolute_projections;  ///< [tokens]: sum_c |values[i,c]| sum_j |W^O[c,j]|
};

/// The rounding scale of one query head.
///
/// values             [tokens, head_dim]
/// output_projection  [head_dim, model_dim]
/// throws             ShapeMismatch; NonFinite if L or theta might overflow
RoundingScale rounding_scale(MatrixView values, MatrixView output_projection);

/// The most by which a computed L may exceed a computed theta through rounding alone.
///
///     slack = 2 gamma_k sum_i |w_i| sum_c |values[i,c]| sum_j |W^O[c,j]|
///             + eta (tokens (1 + sum_cj |W^O[c,j]|) + 2 head_dim model_dim)
///
/// with gamma_k = k u / (1 - k u), u = 2^-53, k = tokens + head_dim + model_dim + 8, eta = 2^-1074. Each of L
/// and theta is a sum of products of the same computed w with values and W^O; every product and sum of either
/// passes through at most k roundings, and the sums of absolute terms are at most the double sum above. A
/// product that underflows is off by eta/2: `tokens` products per column of values, each then multiplied by a
/// row of W^O, and head_dim model_dim in the product with W^O, in L and (times sum |w| <= 2) in theta. An
/// error of w needs no term, because L <= theta holds for any w.
///
/// eviction  w of the first tokens that `scale` was computed from
/// throws    ShapeMismatch if `eviction` has more tokens than `scale`
double perturbation_rounding(const EvictionWeights& eviction, const RoundingScale& scale);

}  // namespace kvbound::reference
