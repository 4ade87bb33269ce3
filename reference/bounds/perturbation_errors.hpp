// Bounds on the difference, through rounding alone, of another
// implementation's kept mass, theta and L from the reference's.
//
// Derived in reference/bounds/perturbation_errors.md. Each bound covers two ways to compute a quantity: the
// form without cancellation of reference/perturbation.hpp, and the papers' printed form.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// Error bounds of one query head at one query.
struct PerturbationErrors {
  double kept_mass = 0;
  double bound = 0;         ///< theta
  double perturbation = 0;  ///< L
  double terms = 0;  ///< sum of absolute terms of L, to which the rounding of sums over heads is relative
};

/// The query heads of one KV head at one query, and the kept entries.
struct PerturbationCase {
  MatrixView queries;  ///< [group_size, head_dim]: one query of each head, all at the last position
  MatrixView keys;     ///< [tokens, head_dim]
  MatrixView values;   ///< [tokens, head_dim]
  double scale = 1;
  std::span<const int64_t> kept;  ///< ascending, at least one
  MatrixView kept_keys;           ///< [kept, head_dim]
  MatrixView kept_values;         ///< [kept, head_dim]
  MatrixView norms;               ///< [group_size, tokens]: L1 norms of the projected values
  MatrixView norm_errors;         ///< [group_size, tokens]
  MatrixView projection_norms;    ///< [group_size, head_dim]: ||W^O_h[c,:]||_1
  int64_t model_dim = 0;
};

/// The error bounds of every query head.
///
/// returns  [group_size]
/// throws   ShapeMismatch, NonFinite
std::vector<PerturbationErrors> perturbation_errors(const PerturbationCase& given,
                                                    const Arithmetic& arithmetic);

/// A bound for sum_h theta_h, with theta computed from weights that are not the softmax of known logits, such
/// as the mean of attention weights over a window.
///
/// weights, weight_errors, norms, norm_errors  [heads, tokens]
/// kept      ascending
/// returns   infinity where a head's kept entries may hold no mass
double total_bound_error(MatrixView weights, MatrixView weight_errors, MatrixView norms,
                         MatrixView norm_errors, std::span<const int64_t> kept, const Arithmetic& arithmetic);

/// gamma_count: an upper bound of the rounding error of a sum of
/// `count` numbers, as a share of the sum of their absolute values.
double sum_rounding(int64_t count, const Arithmetic& arithmetic);

/// The L1 norm of every row of W^O.   returns [query_heads, head_dim]
Matrix projection_row_norms(MatrixView output_projection, int64_t head_dim);

/// Error bounds of the attention weights of one query per head.
///
/// queries  [heads, head_dim]; every query sees all keys
/// returns  [heads, tokens]
Matrix attention_weight_errors(MatrixView queries, MatrixView keys, double scale,
                               const Arithmetic& arithmetic);

}  // namespace kvbound::reference
