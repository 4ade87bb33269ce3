// Gram matrices of W^O and squared lengths after it by fp32 multiply-adds: fp32.
#include <algorithm>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>

#include "gram_rows.hpp"
#include "value_space_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace value_space_kernels {
namespace {

using namespace gram_rows;

constexpr int kGramThreads = 256;
constexpr int kGramTile = 32;  // rows and columns of a block's tile, and columns of W^O at a time
constexpr int kGramPitch = kGramTile + 1;
constexpr int kGramSide = 16;  // a thread has 2 x 2 numbers

struct GramShared {
  float* rows;     // [kGramTile, kGramPitch] of W^O
  float* columns;  // likewise: the rows of W^O that are G's columns

  __host__ __device__ explicit GramShared(SharedMemory& memory)
      : rows(memory.array<float>(kGramTile * kGramPitch)),
        columns(memory.array<float>(kGramTile * kGramPitch)) {}
};

// Loads rows first.. and columns column.. of W^O; zeros outside the matrix.
__device__ void load_tile(const DeviceTensor<const float>& projection, int64_t head, int64_t first,
                          int64_t column, float* tile) {
  for (int n = static_cast<int>(threadIdx.x); n < kGramTile * kGramTile; n += kGramThreads) {
    const int64_t row = first + n / kGramTile, col = column + n % kGramTile;
    const bool inside = row < projection.rows && col < projection.cols;
    tile[n / kGramTile * kGramPitch + n % kGramTile] =
        inside ? projection.data[head * projection.slice_stride + row * projection.row_stride + col] : 0.0f;
  }
}

// 32 x 32 numbers of one head's Gram matrix: W^O's columns are taken 32 at a time, each 32 products in a sum of their
// own. A thread has rows t / 16, t / 16 + 16 and columns t % 16, t % 16 + 16.
//
// grid       (ceil(head_dim / 32), ceil(head_dim / 32), query_heads)
// block      256
// shared     8,448 bytes
// registers  38 (sm_90a), 40 (sm_80)
// bytes      read: 256 model_dim for each block; written: 4 query_heads head_dim^2
// FLOP       2 query_heads head_dim^2 model_dim
__global__ void __launch_bounds__(kGramThreads)
    gram_kernel(DeviceTensor<const float> projection, float* gram) {
  SharedMemory memory;
  const GramShared shared(memory);
  const int64_t head = blockIdx.z;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kGramTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kGramTile;
  const int row = static_cast<int>(threadIdx.x) / kGramSide,
            column = static_cast<int>(threadIdx.x) % kGramSide;
  float sums[2][2] = {};
  for (int64_t m = 0; m < projection.cols; m += kGramTile) {
    __syncthreads();
    load_tile(projection, head, first_row, m, shared.rows);
    load_tile(projection, head, first_column, m, shared.columns);
    __syncthreads();
    float part[2][2] = {};
    for (int k = 0; k < kGramTile; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          part[i][j] += shared.rows[(row + i * kGramSide) * kGramPitch + k] *
                        shared.columns[(column + j * kGramSide) * kGramPitch + k];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) sums[i][j] += part[i][j];
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int64_t r = first_row + row + i * kGramSide, c = first_column + column + j * kGramSide;
      if (r < projection.rows && c < projection.rows) {
        gram[(head * projection.rows + r) * projection.rows + c] = sums[i][j];
      }
    }
  }
}

constexpr int kNormWarps = 4;
constexpr int kNormThreads = kNormWarps * 32;
constexpr int kWarpTokens = 4;
constexpr int kBlockTokens = kNormWarps * kWarpTokens;

struct NormShared {
  float* values;  // [kBlockTokens, head_dim]

  __host__ __device__ NormShared(SharedMemory& memory, int64_t head_dim)
      : values(memory.array<float>(kBlockTokens * head_dim)) {}
};

// The squared lengths of 16 tokens' values after one query head's W^O: a warp has four tokens.
//
// grid       (ceil(tokens / 16), query_heads)
// block      128
// shared     64 head_dim bytes
// registers  72 (sm_90a), 64 (sm_80)
// bytes      read: 4 head_dim for each token and query head, and 4 head_dim^2 of G for each warp, mostly from the
//            L1 and L2 cache; written: 4 query_heads tokens
// FLOP       2 query_heads tokens head_dim (head_dim + 1)
__global__ void __launch_bounds__(kNormThreads) squared_norms_kernel(Arguments<float> p) {
  SharedMemory memory;
  const DeviceTensor<const float>& values = p.values;
  const NormShared shared(memory, values.cols);
  const int64_t head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockTokens;
  const auto head_dim = static_cast<int>(values.cols);
  const float* slice = values.data + p.kv_head_of(head) * values.slice_stride;
  for (int n = static_cast<int>(threadIdx.x); n < kBlockTokens * head_dim; n += kNormThreads) {
    const int64_t token = first + n / head_dim;
    shared.values[n] = token < values.rows ? slice[token * values.row_stride + n % head_dim] : 0.0f;
  }
  __syncthreads();
  const float* rows = shared.values + warp() * kWarpTokens * head_dim;
  const GramRows<kWarpTokens> products(rows, p.gram + head * head_dim * head_dim, head_dim);
#pragma unroll
  for (int r = 0; r < kWarpTokens; ++r) {
    const float square = products.product(r, rows + r * head_dim, head_dim);
    const int64_t token = first + warp() * kWarpTokens + r;
    if (lane() == 0 && token < values.rows) p.norms[head * values.rows + token] = not_negative(square);
  }
}

}  // namespace

void launch_gram_portable(const DeviceTensor<const float>& output_projection, float* gram, Stream stream) {
  const int64_t tiles = ceil_division(output_projection.rows, kGramTile);
  launch<gram_kernel>({extent(tiles, tiles, output_projection.slices), extent(kGramThreads),
                       shared_bytes<GramShared>(), stream},
                      output_projection, gram);
}

void launch_squares_portable(const Arguments<float>& arguments, Stream stream) {
  launch<squared_norms_kernel>(
      {extent(ceil_division(arguments.values.rows, kBlockTokens), arguments.query_heads),
       extent(kNormThreads), shared_bytes<NormShared>(arguments.values.cols), stream},
      arguments);
}

int64_t portable_gram_depth(int64_t model_dim) {
  return std::min<int64_t>(model_dim, kGramTile) + ceil_division(model_dim, kGramTile);
}

int64_t portable_square_depth(int64_t head_dim) { return product_depth(head_dim); }

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
