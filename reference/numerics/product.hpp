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

/// Whose choice the kernels are that products run on: the BLAS library's, the user's (OPENBLAS_CORETYPE), that of
/// use_fastest_products, or that of use_products_of.
enum class KernelChoice { library, user, fastest, named };

/// Which BLAS was really loaded, and which of its kernels run: with several installed, OPENBLAS_CORETYPE set, or a
/// processor that is newer than the library, it is not the obvious one.
struct BlasInfo {
  std::string name;     ///< library, version and build options, as "OpenBLAS 0.3.21 ..." or "Eigen 3.4.0"
  std::string core;     ///< the processor type whose kernels run
  std::string flavour;  ///< serial, pthread or openmp
  std::string core_at_load;  ///< the processor type whose kernels ran when the program began
  KernelChoice chosen_by;    ///< who chose `core`
  std::string
      faster_core;  ///< a core with faster kernels that this processor can run as well; empty if none is known

  std::string library() const { return name.substr(0, name.find(' ')); }
};
BlasInfo blas_info();

/// Makes products run on the fastest kernels that this processor and its operating system can run.
///
/// OpenBLAS gives a processor that is newer than itself its oldest kernels, a quarter as fast as the right ones or less.
/// Where the instructions that the processor has (product_kernels.hpp: faster_cores) promise faster kernels, OpenBLAS
/// chooses again, as if OPENBLAS_CORETYPE had named them when the program was started: the same bits as with that. Else
/// nothing changes: where OPENBLAS_CORETYPE is set and not empty, whatever it names; where OpenBLAS chose kernels at
/// least as good; where it has only one set of kernels (built without DYNAMIC_ARCH); where products are Eigen's.
///
/// Call it at the beginning of main, before any product and before other threads are started: the kernels are a setting
/// of the whole process, other uses of OpenBLAS in it included; a product that runs in another thread meanwhile may
/// crash; and the environment is changed for a moment, which must not be read in another thread meanwhile. Results
/// before and after the call may differ in their last bits. A second call does nothing, unless OPENBLAS_CORETYPE was set
/// at the first and has been removed from the environment.
///
/// returns  what runs from now on, who chose it, and faster_core where it could not be had; as blas_info() from now on
BlasInfo use_fastest_products();

/// Makes products run on the kernels of a core, named as in OPENBLAS_CORETYPE, whether or not the processor can run
/// them. The same conditions hold as for use_fastest_products.
///
/// returns  what runs from now on: not `core` where OpenBLAS does not have it
BlasInfo use_products_of(const std::string& core);

/// The kernels of another core for as long as this lives, then those from before. The same conditions hold as for
/// use_fastest_products.
class ProductsOf {
 public:
  explicit ProductsOf(const std::string& core);  ///< nothing happens where it is the core at work
  ~ProductsOf();
  ProductsOf(const ProductsOf&) = delete;
  ProductsOf& operator=(const ProductsOf&) = delete;

 private:
  std::string before_;  ///< empty where there is nothing to restore
};

}  // namespace kvbound::reference
