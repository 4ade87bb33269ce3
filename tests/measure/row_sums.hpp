// Norms of the rows of a matrix in device memory: what K3 does in its kernel, for products
// that a library has formed.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// sums[i] = sum_j |numbers[i, j]|
///
/// numbers  [rows, cols], device memory, without gaps
/// sums     [rows], device memory
void row_sums(const float* numbers, int64_t rows, int64_t cols, float* sums, Stream stream);

/// The accumulation depth of a sum.
int64_t row_sums_depth(int64_t cols);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
