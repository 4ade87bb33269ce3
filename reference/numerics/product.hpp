// Matrix products, by BLAS on one thread: the caller parallelises over independent products. A portable build has
// Eigen's instead, of which whatever is said of BLAS here holds.
#pragma once

#include <string>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// out = a * b.  a [m, k], b [k, n], out [m, n]; k = 0 gives zeros.  throws ShapeMismatch
void multiply(MatrixView a, MatrixView b, MutableMatrixView out);

/// out = scale * a * transpose(b).  a [m, k], b [n, k], out [m, n]; k = 0 gives zeros.  throws ShapeMismatch
void multiply_transposed(MatrixView a, MatrixView b, MutableMatrixView out, double scale = 1);

/// out = a * b with threads inside BLAS, which no operation here uses, because its bits depend on their number:
/// what others are measured against. Leaves one BLAS thread, whatever happens, and OpenMP's as they were. Not
/// to be called while another product runs.
/// returns  how many threads BLAS had for it: fewer than asked for if it cannot work on so many
/// throws   ShapeMismatch
int multiply_with_blas_threads(MatrixView a, MatrixView b, MutableMatrixView out, int threads);

/// How many threads BLAS has: one, except during multiply_with_blas_threads.
int blas_threads();

/// Which BLAS was really loaded: with several installed, or OPENBLAS_CORETYPE set, it is not the obvious one.
struct BlasInfo {
  std::string name;     ///< library, version and build options, as "OpenBLAS 0.3.21 ..." or "Eigen 3.4.0"
  std::string core;     ///< the processor type whose kernels run
  std::string flavour;  ///< serial, pthread or openmp

  std::string library() const { return name.substr(0, name.find(' ')); }
};
BlasInfo blas_info();

}  // namespace kvbound::reference
