// Rounding errors of one query's attention output, as a sum of weighted values: error_bounds.md,
// "Output" and "Long sums".
//
// Not a public header: include error_bounds.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "error_bounds.hpp"
#include "softmax_errors.hpp"

namespace kvbound::reference::rounding {

/// The softmax of one query, and how far rounding can take it.
struct QuerySoftmax {
  VectorView logits;     ///< [tokens], with votes
  VectorView exponents;  ///< [tokens]: T
  SoftmaxErrors errors;
  double rescalings = 0;  ///< of the partial sums
  bool in_order = true;   ///< CacheErrors::in_order
};

/// Errors of the weights that all components of an output share.
struct SharedRounding {
  double sum = 0;      ///< relative: of the sum of the exponentials
  double divisor = 0;  ///< the same, rescaled apart from the output's sums
  double weights =
      0;  ///< relative: of each weight before it multiplies values, that of a sum of rounded ones included
};

/// The most rescalings of one query's partial sums.
double rescalings_of(VectorView logits, const Arithmetic& arithmetic);

SharedRounding shared_rounding(const QuerySoftmax& softmax, const Arithmetic& arithmetic);

/// The relative error of the number that divides all weights, if these are exponentials with errors apart
/// from those in the sum; infinite where such weights need not be nearly of sum 1.
double divisor_error(const SharedRounding& shared, const SoftmaxErrors& softmax);

/// Bounds for the output of one query by the errors of its weights alone, [head_dim], the smallest of three,
/// by what weights lose below the normal range of their type, and by what each component adds on its own.
///
/// weight_errors  [tokens]: absolute, with `shared`
struct OutputErrors {
  OutputErrors(const QuerySoftmax& softmax, const SharedRounding& shared, VectorView weight_errors,
               MatrixView values, const Arithmetic& arithmetic);

  std::vector<double> by_weights;  ///< [head_dim]
  std::vector<double> lost;        ///< [head_dim]
  std::vector<double> own;         ///< [head_dim]
  std::vector<double> parts;  ///< [head_dim]: AttentionErrors::parts; none where partials are not rounded
  double weights_floor = 0;   ///< phi_w (1 + y)
};

}  // namespace kvbound::reference::rounding
