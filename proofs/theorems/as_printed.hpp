// CriticalKV's perturbation and bounds in double precision, by the formulas that the paper prints.
//
// They equal those of reference/perturbation.hpp in exact arithmetic:
// proofs/critical_kv.md#ckv-stable. In double precision they subtract nearly equal numbers, so that a
// bound may fall below the quantity that it bounds.
//
// In all functions: attention_weights [tokens], >= 0, of sum 1; projected_value_norms
// [tokens], ||values[i,:] W^O|| in any one norm; sets are ascending indices of
// tokens. They throw ShapeMismatch, and NonFinite for a set without attention mass.
#pragma once

#include <kvbound/reference/perturbation.hpp>

namespace kvbound::proofs {

using reference::Indices;

/// L as || o - o^ ||_1 of two separately computed outputs: cancels when almost all mass is kept.
double output_perturbation_as_printed(VectorView attention_weights, MatrixView values,
                                      MatrixView output_projection, Indices kept);

/// theta as C - (2 - 1/Sigma) S: cancels when almost all mass is kept, and then may fall below L.
double perturbation_bound_as_printed(VectorView attention_weights, VectorView projected_value_norms,
                                     Indices kept);

/// theta^ as C' - (2 - 1/sigma) S'', C' = C - (2 - 1/sigma) S'.
double stage_two_bound_as_printed(VectorView attention_weights, VectorView projected_value_norms,
                                  Indices stage_one, Indices kept);

/// theta^_relax as C' - M (2 - 1/sigma) sum_{stage two} A_i.
double attention_only_bound_as_printed(VectorView attention_weights, VectorView projected_value_norms,
                                       Indices stage_one, Indices kept);

}  // namespace kvbound::proofs
