// Gram matrices of W^O in double precision: any type, any device.
//
// What G is off by, its factor is off by the root of: with numbers of G from tensor cores, or summed in fp32,
// that would be most of a length's error bound. So G is summed in fp64, factored in it, and rounded once.
#include <algorithm>

#include <kvbound/cuda/primitives/kernel.hpp>

#include "value_space_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace value_space_kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 64;  // threads that have all numbers of a tile: 8 x 8 threads with 4 x 4 numbers each
constexpr int kGroups = kThreads / kGroup;
constexpr int kSide = 8;
constexpr int kEach = 4;
constexpr int kTileRows = kSide * kEach;                // and columns, of G
constexpr int kDepth = 64;                              // columns of W^O at a time
constexpr int kPitch = kTileRows + 2;                   // conflict-free, and whole vectors of two numbers
constexpr int kSumPitch = kTileRows + 1;                // conflict-free by rows and by columns
constexpr int kSums = kGroups * kTileRows * kSumPitch;  // doubles
constexpr int kStages = 2 * kDepth * kPitch;            // doubles

struct Shared {
  // [2, kDepth, kPitch]: W^O's rows that are G's rows, and those that are its columns, transposed
  double* stages;
  double* sums;  // [kGroups, kTileRows, kSumPitch], in place of the stages

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : stages(memory.array<double>(std::max(kStages, kSums))), sums(stages) {}
};

// A block's tile of G: on the diagonal or left of it.
struct Tile {
  int row, column;  // the first ones

  __device__ explicit Tile(int number) {
    int of_row = 0;
    for (; number > of_row; ++of_row) number -= of_row + 1;
    row = of_row * kTileRows;
    column = number * kTileRows;
  }
};

// Puts 32 rows of W^O and 64 of its columns into shared memory, transposed; zeros outside the matrix. Column
// c lies in row (c % kVector) kLanes + c / kVector, so that the lanes of a warp write to different banks.
template <Storage T>
__device__ void load_rows(const DeviceTensor<const T>& projection, int64_t head, int first, int64_t column,
                          double* to) {
  constexpr int kNumbers = static_cast<int>(kVector<T>), kLanes = kDepth / kNumbers;
#pragma unroll
  for (int n = static_cast<int>(threadIdx.x); n < kTileRows * kLanes; n += kThreads) {
    const int row = n / kLanes, vector = n % kLanes;
    const int64_t from = column + vector * kNumbers;
    Vector<T> numbers{};
    if (first + row < projection.rows && from < projection.cols) {
      numbers = load16(projection.data + head * projection.slice_stride +
                       (first + row) * projection.row_stride + from);
    }
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) to[(i * kLanes + vector) * kPitch + row] = numbers.values[i];
  }
}

// Adds the products of a group's quarter of the columns in shared memory.
//
// sums  [i][j]: of row 4 y + i and column 2 x + j % 2 + 16 (j / 2)
__device__ void multiply(const double* of_rows, const double* of_columns, int quarter, int y, int x,
                         double (&sums)[kEach][kEach]) {
#pragma unroll 4
  for (int k = quarter * (kDepth / kGroups); k < (quarter + 1) * (kDepth / kGroups); ++k) {
    const auto* const rows = reinterpret_cast<const double2*>(of_rows + k * kPitch);
    const auto* const columns = reinterpret_cast<const double2*>(of_columns + k * kPitch);
    const double2 a[2] = {rows[2 * y], rows[2 * y + 1]}, b[2] = {columns[x], columns[x + kSide]};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const double of_row = i % 2 == 0 ? a[i / 2].x : a[i / 2].y;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        sums[i][j] = fma(of_row, j % 2 == 0 ? b[j / 2].x : b[j / 2].y, sums[i][j]);
      }
    }
  }
}

// 32 x 32 numbers of one head's Gram matrix, and their mirror image: each of four groups of threads
// multiplies a quarter of the columns of W^O that are in shared memory.
//
//                                            W^O's rows that are G's columns, 64 columns at a time
//                                            +-------------------------+
//                                            | thread: 4 of 32 numbers |
//                                            +-------------------------+
//       W^O's rows that are G's rows         +-------------------------+
//       +---------------------------+        | thread: 4 x 4 sums, in  |   sums of four groups, added
//       | thread: 4 of 32 numbers   |        | registers               |   in shared memory: G[r, c], G[c, r]
//       +---------------------------+        +-------------------------+
//
// grid       (t (t + 1) / 2, query_heads), t = ceil(head_dim / 32)
// block      256
// shared     34,816 bytes
// registers  76 of 16-bit types, 128 of fp32 (sm_90a and sm_80)
// bytes      read: 64 model_dim sizeof(T) for each block, half of it on the diagonal; written:
//            4 query_heads head_dim^2 of `gram`, and about 4 (head_dim + 32) head_dim query_heads of `exact`
// FLOP       fp64, query_heads head_dim (head_dim + 32) model_dim
template <Storage T>
__global__ void __launch_bounds__(kThreads)
    gram_kernel(DeviceTensor<const T> projection, float* gram, double* exact) {
  SharedMemory memory;
  const Shared shared(memory);
  const Tile tile(static_cast<int>(blockIdx.x));
  const int64_t head = blockIdx.y;
  const int thread = static_cast<int>(threadIdx.x), group = thread / kGroup;
  const int y = thread % kGroup / kSide, x = thread % kSide;
  const double* const columns = shared.stages + (tile.row != tile.column ? kDepth * kPitch : 0);
  double sums[kEach][kEach] = {};
  for (int64_t column = 0; column < projection.cols; column += kDepth) {
    __syncthreads();
    load_rows(projection, head, tile.row, column, shared.stages);
    if (tile.row != tile.column)
      load_rows(projection, head, tile.column, column, shared.stages + kDepth * kPitch);
    __syncthreads();
    multiply(shared.stages, columns, group, y, x, sums);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kEach * kEach; ++i) {
    const int row = y * kEach + i / kEach, j = i % kEach, col = 2 * x + j % 2 + j / 2 * (2 * kSide);
    shared.sums[(group * kTileRows + row) * kSumPitch + col] = sums[i / kEach][j];
  }
  __syncthreads();
  const auto head_dim = static_cast<int>(projection.rows);
  const int64_t of_head = head * head_dim * head_dim;
  // A warp writes rows: of the tile, and of its mirror image, which no factor needs.
  const int rows = tile.row == tile.column ? kTileRows : 2 * kTileRows;
  for (int n = warp(); n < rows; n += kThreads / 32) {
    const bool mirrored = n >= kTileRows;
    const int row = mirrored ? lane() : n, col = mirrored ? n - kTileRows : lane();
    double sum = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) sum += shared.sums[(g * kTileRows + row) * kSumPitch + col];
    const int r = mirrored ? tile.column + col : tile.row + row,
              c = mirrored ? tile.row + row : tile.column + col;
    if (r >= head_dim || c >= head_dim) continue;
    gram[of_head + r * head_dim + c] = static_cast<float>(sum);
    if (!mirrored) exact[of_head + r * head_dim + c] = sum;
  }
}

}  // namespace

template <Storage T>
void launch_gram(const DeviceTensor<const T>& output_projection, float* gram, double* exact, Stream stream) {
  const int64_t tiles = ceil_division(output_projection.rows, kTileRows);
  launch<gram_kernel<T>>({extent(tiles * (tiles + 1) / 2, output_projection.slices), extent(kThreads),
                          shared_bytes<Shared>(), stream},
                         output_projection, gram, exact);
}
template void launch_gram(const DeviceTensor<const float>&, float*, double*, Stream);
template void launch_gram(const DeviceTensor<const Float16>&, float*, double*, Stream);
template void launch_gram(const DeviceTensor<const Bfloat16>&, float*, double*, Stream);

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
