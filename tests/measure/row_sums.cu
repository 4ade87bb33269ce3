#include "row_sums.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kSumThreads = 256;
constexpr int kSumWarps = kSumThreads / 32;

struct SumShared {
  float* by_warp;  // [kSumWarps]

  __host__ __device__ explicit SumShared(SharedMemory& memory) : by_warp(memory.array<float>(kSumWarps)) {}
};

// One block for each row; a thread adds every 256th number.
__global__ void __launch_bounds__(kSumThreads)
    row_sums_kernel(const float* numbers, int64_t cols, float* sums) {
  SharedMemory memory;
  const SumShared shared(memory);
  const float* row = numbers + blockIdx.x * cols;
  float sum = 0;
  for (int64_t j = threadIdx.x; j < cols; j += kSumThreads) sum += fabsf(row[j]);
  sum = block_sum<kSumWarps>(sum, shared.by_warp);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

void row_sums(const float* numbers, int64_t rows, int64_t cols, float* sums, Stream stream) {
  if (rows == 0) return;
  launch<row_sums_kernel>({extent(rows), dim3(kSumThreads), shared_bytes<SumShared>(), stream}, numbers, cols,
                          sums);
}

int64_t row_sums_depth(int64_t cols) { return ceil_division(cols, kSumThreads) + 5 + kSumWarps; }

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
