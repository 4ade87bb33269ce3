// Norms of the rows of a matrix product that is never stored whole.
#pragma once

#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The norms of the rows of a product.
///
///     norms[i] = || rows[i,:] * matrix ||     in L1 or L2
///
/// rows     [tokens, inner]
/// matrix   [inner, columns]
/// returns  [tokens], >= 0; empty for no tokens. The product is formed block by block; in L2 it is not, where the Gram matrix
///          of `matrix` gives the norm with a relative error of at most kGramNormError (gram_norms.hpp). Equal rows have equal
///          norms to the last bit, however many rows there are
/// throws   ShapeMismatch if the inner dimensions differ
std::vector<double> row_norms(MatrixView rows, MatrixView matrix, Norm norm);

/// The operands of one product.
struct RowProduct {
  MatrixView rows;    ///< [tokens, inner]
  MatrixView matrix;  ///< [inner, columns]
};

/// The row norms of several products with the same number of rows, in parallel.   returns [products, tokens]
Matrix row_norms(std::span<const RowProduct> products, Norm norm);

}  // namespace kvbound::reference
