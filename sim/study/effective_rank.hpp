// How many dimensions a matrix uses: the effective rank and the stable rank.
#pragma once

#include <kvbound/reference/core/view.hpp>

namespace kvbound::sim {

/// Both are 0 for a matrix of zeros, as its rank is, else 1..min(rows, cols). They do not change if the
/// matrix is multiplied by a number other than 0, or by an orthogonal matrix on either side.
struct EffectiveRank {
  double effective = 0;  ///< exp of the entropy of the normalised singular values
  double stable = 0;     ///< squared Frobenius norm over squared spectral norm; at most the rank
};

/// The effective rank of a matrix.
///
///     effective = exp(-sum_i p_i ln p_i),  p_i = sigma_i / sum_j sigma_j,  0 ln 0 = 0
///     stable    = ||matrix||_F^2 / ||matrix||_2^2 = sum_i sigma_i^2 / sigma_1^2
///
/// with sigma the singular values; the matrix is not centred. In practice each sigma is off by a few
/// 2^-53 sigma_1 (reference/numerics/singular_values.hpp, also for what is certain). Since p ln p has a
/// slope of at most 38 where p >= 2^-53, `effective` is off by about 38 min(rows, cols) times as much at
/// most, relative to its value.
///
/// matrix  [rows, cols], finite numbers of any size; 0 if it is empty
/// throws  NonFinite if a number is NaN or infinite
/// source  O. Roy and M. Vetterli, The effective rank: a measure of effective dimensionality, EUSIPCO 2007;
///         stable rank: M. Rudelson and R. Vershynin, Sampling from large matrices, J. ACM 54 (2007)
EffectiveRank effective_rank(MatrixView matrix);

}  // namespace kvbound::sim
