// Bounds on linear functionals <w, o^ - o> of a query's attention output, by which systematic faults are seen
// that no single element shows.
//
// Derived in reference/bounds/functionals.md. The rounding error of a weight is the same for all components
// of an output, so that it moves <w, o> by what the errors of all weights together can, which is far less
// than the components' bounds add up to.
#pragma once

#include <array>
#include <complex>
#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/view.hpp>

#include "error_bounds.hpp"

namespace kvbound::reference {

/// Roundings to one type, as far as they need not be independent: numbers at the same place between their
/// neighbours are rounded alike.
class AlikeRoundings {
 public:
  /// amount    how far the rounding of half a spacing moves the functional, with its sign
  /// position  the number's magnitude in spacings
  void add(double amount, double position);
  void add(const AlikeRoundings& other);

  /// What they may come to together: of positions at random like independent ones, of equal ones all of them.
  double size() const;

 private:
  double expected_ = 0;                                // of these positions, rounded to nearest
  std::array<std::complex<double>, 4> by_phase_ = {};  // and by multiples of the phase
};

/// How far roundings take a functional if each is independent of the others and of mean zero
/// (functionals.md, "By chance").
///
/// Of several rows together all members are the sums of the rows'. |<w, o^ - o>| > bias + alike() + t
/// deviation has a probability of at most 2 exp(-t^2 / 2).
struct ChanceError {
  double variance = 0;  ///< deviation^2
  double bias = 0;      ///< of what need not have mean zero
  /// Of weights that are divided by the sum of the rounded ones, by that of the others, and
  /// before they are rounded.
  std::array<AlikeRoundings, 3> weights = {};
  AlikeRoundings parts = {};   ///< of the outputs of the cache's parts
  AlikeRoundings stored = {};  ///< of the output's numbers: none, unless whoever knows their type adds them
  /// What further roundings would add to the variance, with a unit roundoff of 1: of weights, of the outputs
  /// of parts, of both factors of every product.
  double by_weights = 0, by_parts = 0, by_products = 0;

  void add(const ChanceError& other);
  /// What of the roundings that are not independent adds to the bias.
  double alike() const;
};

/// The output of one query, and the bounds on its functionals.
class OutputFunctionals {
 public:
  /// errors  of attention_errors, for these values, votes and this arithmetic; must outlive the
  ///         object, as the values must
  OutputFunctionals(const AttentionErrors& errors, int64_t query, MatrixView values, VectorView votes,
                    const Arithmetic& arithmetic);

  /// o, [head_dim]
  const std::vector<double>& output() const { return output_; }
  /// The bounds of single components, [head_dim].
  VectorView element_errors() const { return errors_.output.row(query_); }
  /// o, but with the outputs of equal parts of the cache rounded, where partials are: what a number's storage
  /// then rounds, [head_dim].
  std::vector<double> merged() const;
  /// d o / d ln scale = sum_j A_j (z_j - sum_l A_l z_l) v_j, [head_dim]: how a factor of all logits
  /// near 1 moves the output.
  std::vector<double> scale_direction() const;

  /// A bound of |<w, o^ - o>|, the rounding of a stored o^ not included.
  ///
  /// direction  w [head_dim]; it may depend on o^
  double error(VectorView direction) const;

  /// The same by chance; nullopt where a rounding would be the same for other queries, as
  /// that of keys and values is.
  ///
  /// direction  w [head_dim]; it may not depend on o^
  std::optional<ChanceError> chance(VectorView direction) const;

 private:
  // Sums over the tokens: of terms, of their squares, and the range of the sums of the first few.
  struct Terms {
    double sum = 0, squares = 0, low = 0, high = 0;
    double signs = 0,
           aligned =
               0;  // of the terms' signs; of the sums of the first few, with the signs of their last terms
    void add(double term);
    double range() const { return high - low; }
    double truncated() const;  // the sums of the first few by their last terms' signs, from either end
    double largest() const;    // that a sum of some successive ones, or of a share of all, is taken to be
  };
  class Along;

  void add_components(VectorView direction, double depth, double parts, ChanceError& error) const;
  void add_part(int64_t first, int64_t last);
  AlikeRoundings rounded_parts(VectorView direction) const;

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
  // Of equal parts, where partials are rounded: their weights, and their outputs [head_dim] divided by these.
  std::vector<double> part_weights_;
  std::vector<std::vector<double>> parts_;
};

}  // namespace kvbound::reference
