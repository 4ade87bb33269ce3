#include "product.hpp"

#include <algorithm>

#include <cblas.h>
#include <omp.h>

#include "product_shapes.hpp"

namespace kvbound::reference {
namespace {

// OpenMP's number of threads for as long as this lives. An OpenBLAS that is built for OpenMP works on that
// many, and sets it along with its own.
class OpenMpThreads {
 public:
  explicit OpenMpThreads(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~OpenMpThreads() { omp_set_num_threads(before_); }
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

 private:
  int before_;
};

// The thread count of OpenBLAS is a setting of the process. One thread, because with more the bits of a
// product depend on their number.
void use_one_blas_thread() {
  [[maybe_unused]] static const bool once = [] {
    const OpenMpThreads kept(1);
    openblas_set_num_threads(1);
    return true;
  }();
}

// More BLAS threads for as long as this lives, then one.
class BlasThreads {
 public:
  explicit BlasThreads(int threads) : openmp_(threads) {
    use_one_blas_thread();  // once for all, so that it does not happen in between
    openblas_set_num_threads(threads);
  }
  ~BlasThreads() { openblas_set_num_threads(1); }  // before OpenMP's are restored
  BlasThreads(const BlasThreads&) = delete;
  BlasThreads& operator=(const BlasThreads&) = delete;

 private:
  OpenMpThreads openmp_;
};

void multiply_any(double scale, MatrixView a, MatrixView b, MutableMatrixView out,
                  CBLAS_TRANSPOSE transpose_b, int threads = 1) {
  if (out.rows == 0 || out.cols == 0) return;
  use_one_blas_thread();
  const OpenMpThreads kept(threads);
  const auto leading = [](const auto& matrix) {
    return static_cast<blasint>(std::max({matrix.row_stride, matrix.cols, int64_t{1}}));
  };
  cblas_dgemm(CblasRowMajor, CblasNoTrans, transpose_b, static_cast<blasint>(out.rows),
              static_cast<blasint>(out.cols), static_cast<blasint>(a.cols), scale, a.data, leading(a), b.data,
              leading(b), 0.0, out.data, leading(out));
}

}  // namespace

void multiply(MatrixView a, MatrixView b, MutableMatrixView out) {
  require_product(a, b, out);
  multiply_any(1, a, b, out, CblasNoTrans);
}

void multiply_transposed(MatrixView a, MatrixView b, MutableMatrixView out, double scale) {
  require_transposed_product(a, b, out);
  multiply_any(scale, a, b, out, CblasTrans);
}

int multiply_with_blas_threads(MatrixView a, MatrixView b, MutableMatrixView out, int threads) {
  const BlasThreads more(threads);
  require_product(a, b, out);
  multiply_any(1, a, b, out, CblasNoTrans, threads);
  return blas_threads();
}

int blas_threads() {
  use_one_blas_thread();
  constexpr int kSerial = 0;
  return openblas_get_parallel() == kSerial ? 1 : openblas_get_num_threads();
}

BlasInfo blas_info() {
  constexpr const char* kFlavours[] = {"serial", "pthread", "openmp"};
  const int flavour = openblas_get_parallel();
  return {openblas_get_config(), openblas_get_corename(),
          0 <= flavour && flavour < 3 ? kFlavours[flavour] : "unknown"};
}

}  // namespace kvbound::reference
