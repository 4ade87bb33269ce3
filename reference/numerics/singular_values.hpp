// The singular values of a matrix.
#pragma once

#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The singular values of a matrix with finite numbers, the largest first: min(rows, cols) of them.
///
/// matrix   [rows, cols]; if rows > max(512, 2 cols), its squares must neither
///          overflow nor underflow: scale it
/// returns  [min(rows, cols)], >= 0, descending
///
/// A tall matrix is first reduced to the triangle of its QR decomposition, 512 rows at a time: the rows stay
/// in the processor's cache, and the memory needed does not grow with them. All steps are backward stable, so
/// every value, also a small one, is off by at most (Weyl's inequality)
///
///     ceil(rows / 512) c (512 + cols) cols 2^-53 ||matrix||_F,  c a small number
///
/// of which rounding, which is rarely one-sided, leaves a few 2^-53 times the largest value in practice.
/// Square roots of the eigenvalues of the Gram matrix would be off by 2^-26 times the largest.
///
/// source   Higham, Accuracy and Stability of Numerical Algorithms (2002), theorem 19.4, with its constant c
std::vector<double> singular_values(MatrixView matrix);

}  // namespace kvbound::reference
