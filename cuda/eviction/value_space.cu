#include "value_space.hpp"

#include <algorithm>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "gram_rows.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
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
template <Storage T>
__device__ void load_tile(const DeviceTensor<const T>& projection, int64_t head, int64_t first,
                          int64_t column, float* tile) {
  for (int n = static_cast<int>(threadIdx.x); n < kGramTile * kGramTile; n += kGramThreads) {
    const int64_t row = first + n / kGramTile, col = column + n % kGramTile;
    const bool inside = row < projection.rows && col < projection.cols;
    tile[n / kGramTile * kGramPitch + n % kGramTile] =
        inside ? to_float(projection.data[head * projection.slice_stride + row * projection.row_stride + col])
               : 0.0f;
  }
}

// 32 x 32 numbers of one head's Gram matrix: W^O's columns are taken 32 at a time, each 32 products in a sum of their
// own. A thread has rows t / 16, t / 16 + 16 and columns t % 16, t % 16 + 16.
//
// grid       (ceil(head_dim / 32), ceil(head_dim / 32), query_heads)
// block      256
// shared     8,448 bytes
// registers  38 (sm_90a), 40 (sm_80)
// bytes      read: 64 model_dim sizeof(T) for each block; written: 4 query_heads head_dim^2
// FLOP       2 query_heads head_dim^2 model_dim
template <Storage T>
__global__ void __launch_bounds__(kGramThreads) gram_kernel(DeviceTensor<const T> projection, float* gram) {
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
// bytes      read: head_dim sizeof(T) for each token and query head, and 4 head_dim^2 of G for each warp, mostly from the
//            L1 and L2 cache; written: 4 query_heads tokens
// FLOP       2 query_heads tokens head_dim (head_dim + 1)
template <Storage T>
__global__ void __launch_bounds__(kNormThreads)
    squared_norms_kernel(DeviceTensor<const T> values, const float* gram, int64_t group_size, float* norms) {
  SharedMemory memory;
  const NormShared shared(memory, values.cols);
  const int64_t head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockTokens;
  const auto head_dim = static_cast<int>(values.cols);
  const T* slice = values.data + head / group_size * values.slice_stride;
  for (int n = static_cast<int>(threadIdx.x); n < kBlockTokens * head_dim; n += kNormThreads) {
    const int64_t token = first + n / head_dim;
    shared.values[n] = token < values.rows ? to_float(slice[token * values.row_stride + n % head_dim]) : 0.0f;
  }
  __syncthreads();
  const float* rows = shared.values + warp() * kWarpTokens * head_dim;
  const GramRows<kWarpTokens> products(rows, gram + head * head_dim * head_dim, head_dim);
#pragma unroll
  for (int r = 0; r < kWarpTokens; ++r) {
    const float square = products.product(r, rows + r * head_dim, head_dim);
    const int64_t token = first + warp() * kWarpTokens + r;
    if (lane() == 0 && token < values.rows) norms[head * values.rows + token] = not_negative(square);
  }
}

constexpr int kSquareThreads = 256;

template <Storage T, int kDims>
inline constexpr int kSquareRows = kSquareThreads / 32 * RowLanes<T, kDims>::kWarpRows;  // of a block

// The sum of the squares of this lane's numbers.
template <Storage T, int kDims>
__device__ float squares_of(const LoadedRow<T, kDims>& value) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < RowLanes<T, kDims>::kNumbers; ++i) sum = fmaf(value.number(i), value.number(i), sum);
  return sum;
}

// The squared lengths of a KV head's values in the head's space, which are the same for all query heads of its group: 8, 16 or 32
// lanes have a value (row_lanes.hpp), and four loads are in flight; a warp's lengths are written at once for each query head.
//
//     lanes  0 .. 15       16 .. 31        head_dim 128 of 16-bit numbers
//            token 0       token 1
//            token 2       token 3
//            token 4       token 5
//            token 6       token 7
//
// grid       (ceil(tokens / block's tokens), kv_heads): 64 tokens for 16-bit types and head_dim 128
// block      256; no shared memory
// registers  32-40 (sm_90a and sm_80)
// bytes      read: head_dim sizeof(T) for each token and KV head; written: 4 query_heads tokens
// FLOP       2 head_dim for each token and KV head
template <int kDims, Storage T>
__global__ void __launch_bounds__(kSquareThreads)
    head_squared_norms_kernel(DeviceTensor<const T> values, int64_t group_size, float* norms) {
  using Lanes = RowLanes<T, kDims>;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kSquareRows<T, kDims>;
  const auto count = static_cast<int>(min(int64_t{kSquareRows<T, kDims>}, values.rows - block));
  const T* const lanes =
      values.data + blockIdx.y * values.slice_stride + block * values.row_stride + Lanes::column(0);
  const int first = warp() * Lanes::kWarpRows + Lanes::row();
  LoadedRow<T, kDims> loaded[kRowsInFlight];
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) {
    const int row = first + n * Lanes::kRowsAtOnce;
    loaded[n].load(lanes, row < count ? row : -1, static_cast<uint32_t>(values.row_stride),
                   static_cast<int>(values.cols));
  }
  float own = 0;  // of the row that this lane writes
#pragma unroll
  for (int n = 0; n < kRowsInFlight; ++n) {
    const float sum = warp_sum<Lanes::kLanes>(squares_of(loaded[n]));
    if (Lanes::lane_in_row() == n) own = sum;
  }
  const int row = first + Lanes::lane_in_row() * Lanes::kRowsAtOnce;
  if (Lanes::lane_in_row() >= kRowsInFlight || row >= count) return;
  float* const to = norms + blockIdx.y * group_size * values.rows + block + row;
  for (int64_t h = 0; h < group_size; ++h) to[h * values.rows] = own;
}

template <int kDims, Storage T>
void launch_head_squared_norms(const DeviceTensor<const T>& values, int64_t group_size, float* norms,
                               Stream stream) {
  launch<head_squared_norms_kernel<kDims, T>>(
      {extent(ceil_division(values.rows, kSquareRows<T, kDims>), values.slices), extent(kSquareThreads), 0,
       stream},
      values, group_size, norms);
}

}  // namespace

template <Storage T>
void gram_matrices(DeviceTensor<const T> output_projection, float* gram, Stream stream) {
  require_layout("output_projection", output_projection);
  require_range("head_dim", output_projection.rows, 1, kMostHeadDim);
  if (output_projection.slices == 0) return;
  const int64_t tiles = ceil_division(output_projection.rows, kGramTile);
  launch<gram_kernel<T>>({extent(tiles, tiles, output_projection.slices), extent(kGramThreads),
                          shared_bytes<GramShared>(), stream},
                         output_projection, gram);
}

template <Storage T>
void squared_norms(DeviceTensor<const T> values, const float* gram, int64_t query_heads, float* norms,
                   Stream stream) {
  require_layout("values", values);
  require_groups(query_heads, values.slices);
  require_range("head_dim", values.cols, 1, kMostHeadDim);
  if (values.rows == 0) return;
  const int64_t group_size = query_heads / values.slices;
  if (!gram) {
    return by_dims(values.cols, [&]<int kDims>(std::integral_constant<int, kDims>) {
      launch_head_squared_norms<kDims>(values, group_size, norms, stream);
    });
  }
  launch<squared_norms_kernel<T>>({extent(ceil_division(values.rows, kBlockTokens), query_heads),
                                   extent(kNormThreads), shared_bytes<NormShared>(values.cols), stream},
                                  values, gram, group_size, norms);
}

int64_t gram_depth(int64_t model_dim) {
  return std::min<int64_t>(model_dim, kGramTile) + ceil_division(model_dim, kGramTile);
}

template void gram_matrices(DeviceTensor<const float>, float*, Stream);
template void gram_matrices(DeviceTensor<const Float16>, float*, Stream);
template void gram_matrices(DeviceTensor<const Bfloat16>, float*, Stream);
template void squared_norms(DeviceTensor<const float>, const float*, int64_t, float*, Stream);
template void squared_norms(DeviceTensor<const Float16>, const float*, int64_t, float*, Stream);
template void squared_norms(DeviceTensor<const Bfloat16>, const float*, int64_t, float*, Stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
