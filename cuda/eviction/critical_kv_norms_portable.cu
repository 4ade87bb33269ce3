// Projected value norms by fp32 multiply-adds: any head_dim, any type, any device. The projected values
// exist only in registers.
#include <algorithm>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>

#include "critical_kv_norms.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace critical_kv_norms {
namespace {

constexpr int kTokens = 64;
constexpr int kDepth = 32;  // rows of W^O at a time
constexpr int kPart = 16;   // products of a partial sum: parts keep the accumulation depth small
constexpr int kEach = 4;    // tokens and columns of a thread
constexpr int kSide = kTokens / kEach;
constexpr int kThreads = kSide * kSide;
constexpr int kPitch = kTokens + 4;  // aligned for float4; the transposing writes hit different banks
static_assert(kColumns == kTokens && kSide == 16, "16 neighbouring lanes share their tokens");

struct Shared {
  float* values;      // [head_dim rounded up to kDepth, kPitch]: token behind dimension
  float* projection;  // [kDepth, kPitch]

  __host__ __device__ Shared(SharedMemory& memory, int64_t head_dim)
      : values(memory.array<float>(round_up(head_dim, kDepth) * kPitch)),
        projection(memory.array<float>(kDepth * kPitch)) {}
};

template <Storage T>
__device__ void load_values(const Arguments<T>& p, const T* values, int64_t first, float* shared) {
  const int64_t head_dim = p.values.cols;
  for (int64_t n = threadIdx.x; n < kTokens * head_dim; n += kThreads) {
    const int64_t token = n / head_dim;
    const int64_t dim = n % head_dim;
    shared[dim * kPitch + token] =
        first + token < p.tokens() ? to_float(values[(first + token) * p.values.row_stride + dim]) : 0.0f;
  }
}

// Loads rows first_row.. and columns first_column.. of one head's W^O; zeros outside the matrix.
template <Storage T>
__device__ void load_projection(const Arguments<T>& p, const T* projection, int64_t first_row,
                                int64_t first_column, float* shared) {
  for (int n = static_cast<int>(threadIdx.x); n < kDepth * kColumns; n += kThreads) {
    const int64_t row = first_row + n / kColumns;
    const int64_t column = first_column + n % kColumns;
    const bool inside = row < p.output_projection.rows && column < p.output_projection.cols;
    shared[n / kColumns * kPitch + n % kColumns] =
        inside ? to_float(projection[row * p.output_projection.row_stride + column]) : 0.0f;
  }
}

// projected[i][j] += sum_d values[d, token i] * projection[d, column j], for at most kPart d
__device__ void multiply(const float* values, const float* projection, int depth,
                         float (&projected)[kEach][kEach]) {
  float part[kEach][kEach] = {};
  for (int d = 0; d < depth; ++d) {
    const float4 v = *reinterpret_cast<const float4*>(values + d * kPitch);
    const float4 w = *reinterpret_cast<const float4*>(projection + d * kPitch);
    const float tokens[kEach] = {v.x, v.y, v.z, v.w};
    const float columns[kEach] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) part[i][j] += tokens[i] * columns[j];
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) projected[i][j] += part[i][j];
  }
}

__device__ float sum_of_absolutes(const float (&projected)[kEach]) {
  return (fabsf(projected[0]) + fabsf(projected[1])) + (fabsf(projected[2]) + fabsf(projected[3]));
}

// Adds the terms of this thread's 4 tokens and 4 columns of every tile, for one query head.
template <Storage T>
__device__ void head_sums(const Arguments<T>& p, const Shared& shared, const T* projection, int my_tokens,
                          int my_columns, float (&sums)[kEach]) {
  const int64_t head_dim = p.values.cols;
  for (int64_t column = 0; column < p.output_projection.cols; column += kColumns) {
    float projected[kEach][kEach] = {};
    for (int64_t dim = 0; dim < head_dim; dim += kDepth) {
      __syncthreads();
      load_projection(p, projection, dim, column, shared.projection);
      __syncthreads();
      const int depth = static_cast<int>(min(head_dim - dim, int64_t{kDepth}));
      for (int d = 0; d < depth; d += kPart) {
        multiply(shared.values + (dim + d) * kPitch + my_tokens, shared.projection + d * kPitch + my_columns,
                 min(depth - d, kPart), projected);
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) sums[i] += sum_of_absolutes(projected[i]);
  }
}

// The norms of 64 tokens' projected values, for the query heads of a block.
//
//                              W^O of a head, 32 rows by 64 columns at a time, in shared memory
//                              +--------------------------------------+
//                              | thread t: columns 4 (t % 16) .. + 3  |
//                              +--------------------------------------+
//       values, fp32, in       +--------------------------------------+
//       shared memory:         | thread t: 4 x 4 projected values, in |  -> sums of the absolute values of 4
//       64 tokens, head_dim;   | registers                            |     tokens in registers, then a tree
//       thread t: tokens       |                                      |     over 16 threads
//       4 (t / 16) .. + 3      +--------------------------------------+
//
// grid       (ceil(tokens / 64), kv_heads * ceil(group / heads_per_block)): launch_blocks
// block      256, as 16 x 16
// shared     272 (round_up(head_dim, 32) + 32) bytes; 43,520 for head_dim 128
// registers  111 (sm_90a), 108 (sm_80)
// bytes      read: the values once for each block of their group; head_dim model_dim sizeof(T) of W^O for
//            each query head and 64 tokens, mostly from the L2 cache; written: 4 query_heads tokens
// FLOP       2 query_heads tokens head_dim model_dim, and 1 for each projected value
template <Storage T>
__global__ void __launch_bounds__(kThreads, 2) norms_portable_kernel(Arguments<T> p) {
  begin_dependent_launch();
  SharedMemory memory;
  const Shared shared(memory, p.values.cols);
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) * kTokens;
  const Heads heads(p, row_of_block());
  if (heads.kv_head >= p.values.slices) return;
  const int my_tokens = static_cast<int>(threadIdx.x) / kSide * kEach;
  const int my_columns = static_cast<int>(threadIdx.x) % kSide * kEach;
  load_values(p, p.values.data + heads.kv_head * p.values.slice_stride, first_token, shared.values);
  for (int64_t head = heads.first; head < heads.first + heads.count; ++head) {
    float sums[kEach] = {};
    head_sums(p, shared, p.output_projection.data + head * p.output_projection.slice_stride, my_tokens,
              my_columns, sums);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float sum = warp_sum<kSide>(sums[i]);  // of the lanes that share their tokens
      const int64_t token = first_token + my_tokens + i;
      if (my_columns == 0 && token < p.tokens()) p.norms[head * p.tokens() + token] = sum;
    }
  }
}

}  // namespace

template <Storage T>
void launch_portable(const Arguments<T>& arguments, Stream stream) {
  launch_blocks<norms_portable_kernel<T>>(arguments, kTokens, kThreads,
                                          shared_bytes<Shared>(arguments.values.cols), stream);
}
template void launch_portable(const Arguments<float>&, Stream);
template void launch_portable(const Arguments<Float16>&, Stream);
template void launch_portable(const Arguments<Bfloat16>&, Stream);

// 4 terms are added by a tree, then the tiles of columns in order, then 16 lanes by a tree.
int64_t portable_accumulation_depth(int64_t model_dim) { return 2 + ceil_division(model_dim, kColumns) + 4; }

int64_t portable_product_depth(int64_t head_dim) {
  return std::min<int64_t>(head_dim, kPart) + ceil_division(head_dim, kPart);
}

}  // namespace critical_kv_norms
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
