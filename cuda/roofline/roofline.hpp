// A device's rooflines, which operations are compared with: the rates at which it copies
// and multiplies matrices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/storage.hpp>

namespace kvbound::cuda {

/// The registers of tensor_products, in 32-bit words: 4 operands A of 4 words and 4
/// operands B of 2, for every lane.
inline constexpr int64_t kProductOperands = (4 * 4 + 4 * 2) * 32;

inline namespace KVBOUND_CUDA_BUILD {

/// Copies within device memory by cudaMemcpyAsync: reads `bytes` and writes as many. The ranges must not
/// overlap. Throws DeviceError.
void copy(void* to, const void* from, int64_t bytes, Stream stream);

/// Multiplies bf16 matrices (mma.sync m16n8k16, sums in fp32) on all multiprocessors, entirely in
/// registers: an upper bound of the rate of any kernel that uses these instructions. Every warp
/// repeats the same 16 products:
///
///     C[i][j] += A[i] B[j],  i, j = 0..3,  A [16, 16], B [16, 8]
///
/// operands  [kProductOperands], device memory, two numbers each: word w of lane l at 32 w + l, first those
///           of A[0..3], then those of B[0..3], in the layout of primitives/tensor_core.hpp
/// sums      [tensor_product_threads()]: for every thread the sum of its numbers of C, which
///           keeps every product alive
/// throws    DeviceError
void tensor_products(const uint32_t* operands, int64_t repeats, float* sums, Stream stream);
int64_t tensor_product_threads();
/// The FLOP of tensor_products; a multiplication and an addition count as two.
double tensor_product_flop(int64_t repeats);

/// A product of a [rows, inner] and an [inner, cols] matrix.
struct ProductShape {
  int64_t rows, inner, cols;
};

/// The matrix products of cuBLAS, which is loaded at run time: no library of ours links to it.
class MatrixLibrary {
 public:
  virtual ~MatrixLibrary() = default;

  /// Null if cuBLAS is not found, as always in the emulation; the reason is then in `why`.
  static std::unique_ptr<MatrixLibrary> open(std::string* why);

  virtual std::string name() const = 0;  ///< the file that was found

  /// product = a b for bf16 matrices [side, side] without gaps in device memory, sums in
  /// fp32. Throws DeviceError.
  virtual void multiply(const Bfloat16* a, const Bfloat16* b, Bfloat16* product, int64_t side,
                        Stream stream) = 0;

  /// product = a b in fp32, for bf16 matrices of any shape without gaps in device memory. Throws DeviceError.
  virtual void multiply(const Bfloat16* a, const Bfloat16* b, float* product, const ProductShape& shape,
                        Stream stream) = 0;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
