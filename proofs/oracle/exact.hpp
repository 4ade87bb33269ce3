// The theorems' quantities in 50 digits, by their definitions. Claims
// are checked with them, so that a violation is never due to rounding.
//
// Letters as in the written proofs: A attention weights, V = values * W^O projected values, N their norms.
#pragma once

#include <functional>
#include <vector>

#include "definitions.hpp"

namespace kvbound::exact {

using oracle::IndexSet;
using oracle::Indices;
using oracle::Real;
using oracle::Reals;
using oracle::softmax;
using oracle::weighted_sum;

enum class Norm { l1, l2, l_infinity };
inline constexpr Norm kNorms[] = {Norm::l1, Norm::l2, Norm::l_infinity};
const char* name(Norm norm);

/// A_i = exp(z_i) / sum_j exp(z_j)
Reals softmax(VectorView logits);
/// V_i = values[i,:] W^O: [tokens][model_dim]
std::vector<Reals> projected_values(MatrixView values, MatrixView output_projection);
Real norm(const Reals& vector, Norm norm);
/// N_i = || V_i ||
Reals norms(const std::vector<Reals>& projected_values, Norm norm);

Reals product(const Reals& a, const Reals& b);  ///< element by element
/// The elements of `all` that are not in `some`.
std::vector<int64_t> difference(IndexSet all, IndexSet some);

/// o - o^ = sum_i A_i V_i - sum_{kept} (A_i / Sigma) V_i
Reals output_change(const Reals& attention, const std::vector<Reals>& projected_values, IndexSet kept);
/// The same as sum_{evicted} A_i V_i - (e / Sigma) sum_{kept} A_i V_i
Reals stable_output_change(const Reals& attention, const std::vector<Reals>& projected_values, IndexSet kept);

/// `excluded` and the `count` entries of largest score outside it (ties: smaller index), ascending.
std::vector<int64_t> with_best(const Reals& scores, IndexSet excluded, int64_t count);

/// The smallest and the largest `value` over all sets that consist of `fixed` and `count` other entries.
///
/// throws  std::length_error if there are more than 2^20 such sets
struct Extremes {
  Real smallest, largest;
};
Extremes over_all_choices(int64_t tokens, IndexSet fixed, int64_t count,
                          const std::function<Real(IndexSet)>& value);

}  // namespace kvbound::exact
