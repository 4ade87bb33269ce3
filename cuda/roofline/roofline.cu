#include "roofline.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
// 16 warps, so that every tensor core has more than one product in flight.
constexpr int kBlocksPerMultiprocessor = 2;
constexpr int kOperands = 4;  // of A, and as many of B
constexpr int64_t kFlopOfAProduct = 2 * 16 * 8 * 16;

// The 16 products C[i][j] += A[i] B[j] of every warp, `repeats` times, all operands in registers.
//
// grid       2 * multiprocessors
// block      256; no shared memory
// registers  98 (sm_90a and sm_80)
// bytes      read: 3,072 for each warp; written: 4 for each thread
// FLOP       65,536 repeats for each warp: 16 products of 2 * 16 * 8 * 16
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    tensor_products_kernel(const uint32_t* operands, int64_t repeats, float* sums) {
  uint32_t a[kOperands][4], b[kOperands][2];
  float c[kOperands][kOperands][4] = {};
#pragma unroll
  for (int i = 0; i < kOperands; ++i) {
#pragma unroll
    for (int word = 0; word < 4; ++word) a[i][word] = operands[32 * (4 * i + word) + lane()];
#pragma unroll
    for (int word = 0; word < 2; ++word) b[i][word] = operands[32 * (4 * kOperands + 2 * i + word) + lane()];
  }
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
#pragma unroll
    for (int i = 0; i < kOperands; ++i) {
#pragma unroll
      for (int j = 0; j < kOperands; ++j) mma_m16n8k16<Bfloat16>(c[i][j], a[i], b[j]);
    }
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kOperands; ++i) {
#pragma unroll
    for (int j = 0; j < kOperands; ++j) {
#pragma unroll
      for (int number = 0; number < 4; ++number) sum += c[i][j][number];
    }
  }
  sums[int64_t{blockIdx.x} * kThreads + threadIdx.x] = sum;
}

int64_t blocks() { return int64_t{kBlocksPerMultiprocessor} * device().multiprocessors; }

}  // namespace

int64_t tensor_product_threads() { return blocks() * kThreads; }

double tensor_product_flop(int64_t repeats) {
  return static_cast<double>(blocks() * kWarps * repeats * kOperands * kOperands * kFlopOfAProduct);
}

void tensor_products(const uint32_t* operands, int64_t repeats, float* sums, Stream stream) {
  launch<tensor_products_kernel>(LaunchShape{extent(blocks()), extent(kThreads), 0, stream}, operands,
                                 repeats, sums);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
