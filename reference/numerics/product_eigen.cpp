// Products by Eigen, compiled instead of product.cpp for programs that must run on machines without BLAS.
#define EIGEN_DONT_PARALLELIZE  // the caller parallelises over independent products
#include <algorithm>

#include <Eigen/Core>

#include "product.hpp"
#include "product_shapes.hpp"

namespace kvbound::reference {
namespace {

template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class M>
using Mapped = Eigen::Map<M, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class T>
Mapped<const RowMajor<T>> mapped(BasicMatrixView<const T> matrix) {
  return {matrix.data, matrix.rows, matrix.cols, Eigen::OuterStride<>(matrix.row_stride)};
}
template <class T>
Mapped<RowMajor<T>> mapped(BasicMatrixView<T> matrix) {
  return {matrix.data, matrix.rows, matrix.cols, Eigen::OuterStride<>(matrix.row_stride)};
}

// Eigen derives the block sizes of a product from the sizes of the processor's caches, and the bits of a sum
// depend on the blocks. Fixed cache sizes give the same bits on every machine.
void use_one_set_of_block_sizes() {
  [[maybe_unused]] static const bool once = [] {
    constexpr std::ptrdiff_t kKiB = 1024;
    Eigen::setCpuCacheSizes(32 * kKiB, 1024 * kKiB, 2048 * kKiB);
    return true;
  }();
}

template <class T, class A, class B>
void multiply_any(T scale, const A& a, const B& b, Mapped<RowMajor<T>> out) {
  use_one_set_of_block_sizes();
  out.noalias() = scale * a * b;
}

}  // namespace

void multiply(MatrixView a, MatrixView b, MutableMatrixView out) {
  require_product(a, b, out);
  multiply_any(1.0, mapped(a), mapped(b), mapped(out));
}

void multiply(SingleMatrixView a, SingleMatrixView b, MutableSingleMatrixView out) {
  require_product(a, b, out);
  multiply_any(1.0F, mapped(a), mapped(b), mapped(out));
}

void multiply_transposed(MatrixView a, MatrixView b, MutableMatrixView out, double scale) {
  require_transposed_product(a, b, out);
  multiply_any(scale, mapped(a), mapped(b).transpose(), mapped(out));
}

void multiply_transposed(SingleMatrixView a, SingleMatrixView b, MutableSingleMatrixView out, float scale) {
  require_transposed_product(a, b, out);
  multiply_any(scale, mapped(a), mapped(b).transpose(), mapped(out));
}

int multiply_with_blas_threads(MatrixView a, MatrixView b, MutableMatrixView out, int) {
  multiply(a, b, out);
  return blas_threads();
}

int blas_threads() { return 1; }

BlasInfo blas_info() {
  const std::string core = Eigen::SimdInstructionSetsInUse();
  return {"Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." + std::to_string(EIGEN_MAJOR_VERSION) + "." +
              std::to_string(EIGEN_MINOR_VERSION),
          core,
          "serial",
          core,
          KernelChoice::library,
          ""};
}

// Eigen's kernels are chosen when it is compiled.
BlasInfo use_fastest_products() { return blas_info(); }
BlasInfo use_products_of(const std::string&) { return blas_info(); }
ProductsOf::ProductsOf(const std::string&) {}
ProductsOf::~ProductsOf() = default;

}  // namespace kvbound::reference
