// Norms of the rows of a matrix product that is never stored whole.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

#include "gram_norms.hpp"

namespace kvbound::reference {

/// The norms of the rows of a product.
///
///     norms[i] = || rows[i,:] * matrix ||     in L1 or L2
///
/// rows     [tokens, inner]
/// matrix   [inner, columns]
/// returns  [tokens], >= 0; empty for no tokens. The product is formed block by block; in L2 it is not, where
///          the Gram matrix of `matrix` gives the norm with a relative error of at most kGramNormError
///          (gram_norms.hpp). Equal rows have equal norms to the last bit, however many rows there are
/// throws   ShapeMismatch if the inner dimensions differ
std::vector<double> row_norms(MatrixView rows, MatrixView matrix, Norm norm);

/// A product's second factor, prepared once for the row norms of many products. It views the matrix.
class NormFactor {
 public:
  NormFactor(MatrixView matrix, Norm norm);

  /// row_norms(rows, matrix, norm), to the last bit.   throws  ShapeMismatch if the inner dimensions differ
  std::vector<double> row_norms(MatrixView rows) const;

 private:
  MatrixView matrix_;
  Norm norm_;
  std::optional<GramNorms> gram_;  // in L2
};

/// The operands of one product.
struct RowProduct {
  MatrixView rows;    ///< [tokens, inner]
  MatrixView matrix;  ///< [inner, columns]
};

/// The row norms of several products of one shape, in parallel.
///
/// returns  [products, tokens]
/// throws   ShapeMismatch if shapes differ
Matrix row_norms(std::span<const RowProduct> products, Norm norm);

}  // namespace kvbound::reference
