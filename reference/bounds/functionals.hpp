// Bounds on linear functionals <w, o^ - o> of a query's attention output, by which systematic faults are seen that no single
// element shows.
//
// Derived in reference/bounds/functionals.md. The rounding error of a weight is the same for all components of an output, so that
// it moves <w, o> by what the errors of all weights together can, which is far less than the components' bounds add up to.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/view.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// The output of one query, and the bounds on its functionals.
class OutputFunctionals {
 public:
  /// errors  of attention_errors, for these values, votes and this arithmetic; must outlive the object, as the values must
  OutputFunctionals(const AttentionErrors& errors, int64_t query, MatrixView values, VectorView votes,
                    const Arithmetic& arithmetic);

  /// o, [head_dim]
  const std::vector<double>& output() const { return output_; }
  /// d o / d ln scale = sum_j A_j (z_j - sum_l A_l z_l) v_j, [head_dim]: how a factor of all logits near 1 moves the output.
  std::vector<double> scale_direction() const;

  /// A bound of |<w, o^ - o>|, the rounding of a stored o^ not included.
  ///
  /// direction  w [head_dim]; it may depend on o^
  double error(VectorView direction) const;

 private:
  const AttentionErrors& errors_;
  int64_t query_;
  MatrixView values_;
  VectorView votes_;
  double rounded_weights_;       // relative rounding of a weight before it multiplies values
  std::vector<double> weights_;  // [tokens]: A
  std::vector<double> growing_;  // [tokens]: A_j (e^T_j - 1), with the rounding of weights
  double growth_ = 0;            // their sum
  std::vector<double> output_;
};

}  // namespace kvbound::reference
