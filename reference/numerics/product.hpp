// Matrix products by BLAS on one thread: the caller parallelises over independent products. A portable build
// uses Eigen instead; all statements about BLAS in this file then hold for Eigen.
#pragma once

#include <string>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// out = a * b.  a [m, k], b [k, n], out [m, n]; k = 0 gives zeros.  throws ShapeMismatch
void multiply(MatrixView a, MatrixView b, MutableMatrixView out);

/// out = scale * a * transpose(b).  a [m, k], b [n, k], out [m, n]; k = 0 gives zeros.  throws ShapeMismatch
void multiply_transposed(MatrixView a, MatrixView b, MutableMatrixView out, double scale = 1);

/// The same in single precision, in which models compute.
void multiply(SingleMatrixView a, SingleMatrixView b, MutableSingleMatrixView out);
void multiply_transposed(SingleMatrixView a, SingleMatrixView b, MutableSingleMatrixView out,
                         float scale = 1);

/// out = a * b with threads inside BLAS: the baseline of speed measurements. No operation of the library uses
/// it, because the bits of its result depend on the number of threads. Afterwards, also after an exception,
/// BLAS has one thread and OpenMP its former number. Must not be called while another product runs.
/// returns  the number of threads that BLAS used: fewer than requested if BLAS does not support that many
/// throws   ShapeMismatch
int multiply_with_blas_threads(MatrixView a, MatrixView b, MutableMatrixView out, int threads);

/// The number of BLAS threads: one, except during multiply_with_blas_threads.
int blas_threads();

/// The origin of the choice of kernels for products: the BLAS library, the user (OPENBLAS_CORETYPE),
/// use_fastest_products (`fastest`) or use_products_of (`named`).
enum class KernelChoice { library, user, fastest, named };

/// The BLAS that was actually loaded and the kernels that it uses. They can be unexpected: several libraries
/// may be installed, OPENBLAS_CORETYPE may be set, or the processor may be newer than the library.
struct BlasInfo {
  std::string name;  ///< library, version and build options, such as "OpenBLAS 0.3.21 ..." or "Eigen 3.4.0"
  std::string core;  ///< the processor type whose kernels run
  std::string flavour;       ///< serial, pthread or openmp
  std::string core_at_load;  ///< the processor type whose kernels ran when the program began
  KernelChoice chosen_by;    ///< who chose `core`
  /// A core with faster kernels that this processor can run as well; empty if none is known.
  std::string faster_core;

  std::string library() const { return name.substr(0, name.find(' ')); }
};
BlasInfo blas_info();

/// Makes products run on the fastest kernels that this processor and its operating system can run.
///
/// OpenBLAS gives a processor that is newer than itself its oldest kernels, a quarter as fast as the right
/// ones or less. If the processor has the instructions of faster kernels (product_kernels.hpp:
/// faster_cores), OpenBLAS chooses again, as if OPENBLAS_CORETYPE had named those kernels when the program
/// started, and with the same bits. The kernels do not change if OPENBLAS_CORETYPE is set and not empty, if
/// OpenBLAS already chose kernels at least as fast, if it has only one set of kernels (built without
/// DYNAMIC_ARCH), or if products are Eigen's.
///
/// Call it at the beginning of main, before any product and before other threads are started: the
/// kernels are a setting of the whole process, other uses of OpenBLAS in it included; a product that
/// runs in another thread during the call may crash; and the call changes the environment for a moment,
/// during which no other thread may read it. Results before and after the call may differ in their last
/// bits. A second call does nothing, unless OPENBLAS_CORETYPE was set at the first call and has been
/// removed from the environment since.
///
/// returns  the kernels used from now on, who chose them, and in faster_core the faster kernels that the
///          library lacks; the same as blas_info() after the call
BlasInfo use_fastest_products();

/// Makes products run on the kernels of the given core, named as in OPENBLAS_CORETYPE, whether or not the
/// processor can run them. The caller must observe the same conditions as for use_fastest_products.
///
/// returns  the kernels used from now on: other ones than those of `core` if OpenBLAS does not have them
BlasInfo use_products_of(const std::string& core);

/// Selects the kernels of another core for the lifetime of the object, then restores the former ones. The
/// caller must observe the same conditions as for use_fastest_products.
class ProductsOf {
 public:
  explicit ProductsOf(const std::string& core);  ///< no effect if `core` is already in use
  ~ProductsOf();
  ProductsOf(const ProductsOf&) = delete;
  ProductsOf& operator=(const ProductsOf&) = delete;

 private:
  std::string before_;  ///< core to restore; empty: none
};

}  // namespace kvbound::reference
