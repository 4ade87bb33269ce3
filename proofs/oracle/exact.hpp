// The theorems' quantities in 50 digits, by their definitions. Claims
// are checked with them, so that a violation is never due to rounding.
//
// Letters as in the written proofs: A attention weights, V = values * W^O projected values, N their norms.
#pragma once

#include <functional>
#include <vector>

#include "bounded.hpp"

namespace kvbound::exact {

using oracle::Indices;
using oracle::Real;
using Reals = std::vector<Real>;

enum class Norm { l1, l2, l_infinity };
inline constexpr Norm kNorms[] = {Norm::l1, Norm::l2, Norm::l_infinity};
const char* name(Norm norm);

/// A_i = exp(z_i) / sum_j exp(z_j)
Reals softmax(VectorView logits);
Reals softmax(const Reals& logits);
/// V_i = values[i,:] W^O: [tokens][model_dim]
std::vector<Reals> projected_values(MatrixView values, MatrixView output_projection);
Real norm(const Reals& vector, Norm norm);
/// N_i = || V_i ||
Reals norms(const std::vector<Reals>& projected_values, Norm norm);

Real total(const Reals& numbers);
/// The sum over the chosen entries, and over the others.
Real total(const Reals& numbers, Indices entries);
Real total_outside(const Reals& numbers, Indices entries);
Reals product(const Reals& a, const Reals& b);  ///< element by element
/// sum_i weights_i vectors_i
Reals weighted_sum(const Reals& weights, const std::vector<Reals>& vectors);
/// The elements of `all` that are not in `some`; ascending sets.
std::vector<int64_t> difference(Indices all, Indices some);

/// o - o^ = sum_i A_i V_i - sum_{kept} (A_i / Sigma) V_i
Reals output_change(const Reals& attention, const std::vector<Reals>& projected_values, Indices kept);
/// The same as sum_{evicted} A_i V_i - (e / Sigma) sum_{kept} A_i V_i
Reals stable_output_change(const Reals& attention, const std::vector<Reals>& projected_values, Indices kept);

/// theta = C - (2 - 1/Sigma) S
Real perturbation_bound(const Reals& attention, const Reals& norms, Indices kept);
/// The same as sum_{evicted} A N + (e / Sigma) S
Real stable_perturbation_bound(const Reals& attention, const Reals& norms, Indices kept);

/// theta^ = C' - (2 - 1/sigma) S'', C' = C - (2 - 1/sigma) S'
Real stage_two_bound(const Reals& attention, const Reals& norms, Indices stage_one, Indices kept);
/// The same as sum_{evicted} A N + ((1 - sigma) / sigma) sum_{kept} A N
Real stable_stage_two_bound(const Reals& attention, const Reals& norms, Indices stage_one, Indices kept);

/// theta^_relax = C' - M (2 - 1/sigma) sum_{stage two} A, M = min N
Real attention_only_bound(const Reals& attention, const Reals& norms, Indices stage_one, Indices kept);
/// The same as sum_{evicted} A N + sum_{two} A (N - M) + ((1 - sigma) / sigma) (S' + M sum_{two} A)
Real stable_attention_only_bound(const Reals& attention, const Reals& norms, Indices stage_one, Indices kept);

/// `excluded` and the `count` entries of largest score outside it (ties: smaller index), ascending.
std::vector<int64_t> with_best(const Reals& scores, Indices excluded, int64_t count);

/// The smallest and the largest `value` over all sets that consist of `fixed` and `count` other entries.
///
/// throws  std::length_error if there are more than 2^20 such sets
struct Extremes {
  Real smallest, largest;
};
Extremes over_all_choices(int64_t tokens, Indices fixed, int64_t count,
                          const std::function<Real(Indices)>& value);

}  // namespace kvbound::exact
