// The singular values of a matrix.
#pragma once

#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The singular values of a matrix with finite numbers, the largest first: min(rows, cols) of them.
///
/// matrix   [rows, cols]; its squares must neither overflow nor underflow if it has more than 512 rows and more than 2
///          cols: scale it
/// returns  [min(rows, cols)], >= 0, descending
///
/// The decomposition is backward stable, so every value, also a small one, is off by a small multiple of 2^-53 times the
/// largest (Weyl's inequality). Square roots of the eigenvalues of the Gram matrix would be off by 2^-26 times the
/// largest. A tall matrix is first reduced to the triangle of its QR decomposition, 512 rows at a time: the rows stay in
/// the processor's cache, and the memory needed does not grow with them.
std::vector<double> singular_values(MatrixView matrix);

}  // namespace kvbound::reference
