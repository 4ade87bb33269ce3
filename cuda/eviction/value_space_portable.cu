// Lengths of values after W^O, which are those of v L, by fp32 multiply-adds: fp32.
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>

#include "gram_rows.hpp"
#include "value_space_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace value_space_kernels {
namespace {

using namespace gram_rows;

constexpr int kNormWarps = 4;
constexpr int kNormThreads = kNormWarps * 32;
constexpr int kWarpTokens = 4;
constexpr int kBlockTokens = kNormWarps * kWarpTokens;

struct NormShared {
  float* values;  // [kBlockTokens, head_dim]

  __host__ __device__ NormShared(SharedMemory& memory, int64_t head_dim)
      : values(memory.array<float>(kBlockTokens * head_dim)) {}
};

// The lengths of 16 tokens' values after one query head's W^O: a warp has four tokens.
//
// grid       (ceil(tokens / 16), query_heads)
// block      128
// shared     64 head_dim bytes
// registers  72 (sm_90a), 64 (sm_80)
// bytes      read: 4 head_dim for each token and query head, and 2 head_dim (head_dim + 32) of L for each
//            warp, mostly from the L1 and L2 cache; written: 4 query_heads tokens
// FLOP       query_heads tokens head_dim (head_dim + 34)
__global__ void __launch_bounds__(kNormThreads) lengths_portable_kernel(Arguments<float> p) {
  begin_dependent_launch();
  SharedMemory memory;
  const DeviceTensor<const float>& values = p.values;
  const NormShared shared(memory, values.cols);
  const int64_t head = row_of_block();
  if (head >= p.query_heads) return;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockTokens;
  const auto head_dim = static_cast<int>(values.cols);
  const float* slice = values.data + p.kv_head_of(head) * values.slice_stride;
  for (int n = static_cast<int>(threadIdx.x); n < kBlockTokens * head_dim; n += kNormThreads) {
    const int64_t token = first + n / head_dim;
    shared.values[n] = token < values.rows ? slice[token * values.row_stride + n % head_dim] : 0.0f;
  }
  __syncthreads();
  const float* rows = shared.values + warp() * kWarpTokens * head_dim;
  const GramRows<kWarpTokens> products(rows, p.factor_of(head), head_dim, true);
#pragma unroll
  for (int r = 0; r < kWarpTokens; ++r) {
    const float square = products.square(r);
    const int64_t token = first + warp() * kWarpTokens + r;
    if (lane() == 0 && token < values.rows) p.norms[head * values.rows + token] = p.length_of(square);
  }
}

}  // namespace

void launch_lengths_portable(const Arguments<float>& arguments, Stream stream) {
  launch_dependent<lengths_portable_kernel>(
      {extent_of_rows(ceil_division(arguments.values.rows, kBlockTokens), arguments.query_heads),
       extent(kNormThreads), shared_bytes<NormShared>(arguments.values.cols), stream},
      arguments);
}

int64_t portable_product_depth(int64_t head_dim) { return row_depth(head_dim); }
int64_t portable_square_depth(int64_t head_dim) { return lanes_depth(head_dim); }

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
