// Bounds on linear functionals <w, o^ - o> of a query's attention output, by which systematic faults are seen that no single
// element shows.
//
// Derived in reference/bounds/functionals.md. The rounding error of a weight is the same for all components of an output, so that
// it moves <w, o> by what the errors of all weights together can, which is far less than the components' bounds add up to.
#pragma once

#include <array>
#include <complex>
#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/view.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// How far roundings take a functional if each is independent of the others and of mean zero (functionals.md, "By chance").
///
/// Of several rows together all members are the sums of the rows'. |<w, o^ - o>| > bias + |largest sum by phase| + t deviation has a
/// probability of at most 2 exp(-t^2 / 2).
struct ChanceError {
  double variance = 0;  ///< deviation^2
  double bias = 0;      ///< of what need not have mean zero
  /// Roundings of weights by their phases: of weights that are divided by the sum of the rounded ones, and of the others.
  std::array<std::complex<double>, 2> weights = {};
  std::complex<double> parts = 0;  ///< the same of the outputs of the cache's parts
  /// What further roundings would add to the variance, with a unit roundoff of 1: of weights, of the outputs of parts, of both
  /// factors of every product.
  double by_weights = 0, by_parts = 0, by_products = 0;

  void add(const ChanceError& other);
};

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

  /// The same by chance; nullopt where a rounding would be the same for other queries, as that of keys and values is.
  ///
  /// direction  w [head_dim]; it may not depend on o^
  std::optional<ChanceError> chance(VectorView direction) const;

 private:
  // Sums over the tokens: of terms, of their squares, and the range of the sums of the first few.
  struct Terms {
    double sum = 0, squares = 0, low = 0, high = 0;
    void add(double term);
    double range() const { return high - low; }
    double largest() const;  // that a sum of some successive ones, or of a share of all, is taken to be
  };
  class Along;

  void add_components(VectorView direction, double depth, double parts, ChanceError& error) const;

  const AttentionErrors& errors_;
  int64_t query_;
  MatrixView values_;
  VectorView votes_;
  Arithmetic arithmetic_;
  std::vector<double> weights_;  // [tokens]: A
  std::vector<double> growing_;  // [tokens]: A_j (e^T_j - 1), with the rounding of weights
  double growth_ = 0;            // their sum
  std::vector<double> output_;
  std::vector<Terms> terms_;  // [head_dim]
};

}  // namespace kvbound::reference
