// Gram matrices of W^O by mma.sync: 16-bit types, compute capability 8.0.
#include <kvbound/cuda/primitives/number_parts.hpp>

#include "value_space_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace value_space_kernels {
namespace {

constexpr int kThreads = 128;   // four warps with 32 x 32 numbers each
constexpr int kBlockTile = 64;  // rows and columns of a block's tile
constexpr int kWarpTile = 32;
constexpr int kSteps = kRowChain;  // of a section of W^O's columns, whose sums are one chain
constexpr int kSectionVectors = PaddedRows<kSteps>::kVectors;
constexpr int kStages = 3;
constexpr int kSide = kBlockTile * PaddedRows<kSteps>::kStride;  // vectors of one side's rows in a stage

struct Shared {
  uint4* stages;  // [kStages, 2, kSide]: W^O's rows that are G's rows, and those that are its columns

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : stages(memory.array<uint4>(kStages * 2 * kSide)) {}
};

// The sections of W^O's columns that a block multiplies.
template <Storage16 T>
struct Sections {
  TokenRows rows;
  int row, column;       // first rows of both sides
  int rows_of, rows_by;  // how many of each side exist
  int count;

  __device__ explicit Sections(const DeviceTensor<const T>& projection)
      : rows(projection, blockIdx.z),
        row(static_cast<int>(blockIdx.y) * kBlockTile),
        column(static_cast<int>(blockIdx.x) * kBlockTile),
        rows_of(min(static_cast<int>(projection.rows) - row, kBlockTile)),
        rows_by(min(static_cast<int>(projection.rows) - column, kBlockTile)),
        count((rows.vectors + kSectionVectors - 1) / kSectionVectors) {}

  // Starts to copy the n-th section to its stage, if it exists.
  __device__ void load(int n, uint4* stages) const {
    if (n < count) {
      TokenRows section = rows;
      section.data += n * kSectionVectors;
      section.vectors -= n * kSectionVectors;
      uint4* const to = stages + n % kStages * 2 * kSide;
      using Share = PaddedRows<kSteps>::Share;
      Share(section, row).copy(0, rows_of, to);
      Share(section, column).copy(0, rows_by, to + kSide);
    }
    async_commit();
  }
};

// A warp's 32 x 32 numbers of G.
struct GramTile {
  float sums[2][2][2][4] = {};  // of 16 rows, 16 columns, two of 8

  // Adds the products of a section's columns.
  template <Storage16 T>
  __device__ void add(const uint4* rows, const uint4* columns) {
    float chain[2][2][2][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      RowTile of[2], by[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        constexpr int kStride = PaddedRows<kSteps>::kStride;
        of[i] = RowTile::load<kSteps>(rows + i * kTile * kStride, 2 * step);
        by[i] = RowTile::load<kSteps>(columns + i * kTile * kStride, 2 * step);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) of[i / 2].add_product<T>(chain[i / 2][i % 2], by[i % 2]);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i)
      sums[i / 16][i / 8 % 2][i / 4 % 2][i % 4] += chain[i / 16][i / 8 % 2][i / 4 % 2][i % 4];
  }

  // row, column  of the tile's first number
  __device__ void store(float* gram, int row, int column, int head_dim) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int r = row + i / 8 * kTile + i % 2 * 8 + lane() / 4;
      const int c = column + i / 4 % 2 * kTile + i / 2 % 2 * 8 + lane() % 4 * 2;
      const float(&pair)[4] = sums[i / 8][i / 4 % 2][i / 2 % 2];
      if (r < head_dim) store_pair(gram + r * head_dim, c, head_dim, {pair[i % 2 * 2], pair[i % 2 * 2 + 1]});
    }
  }
};

// 64 x 64 numbers of one head's Gram matrix. A warp has 32 x 32 of them in registers; W^O's columns pass through shared memory
// 64 at a time, in three stages.
//
//                                   the 64 rows of W^O that are G's columns
//                                   +-------+-------+
//       the 64 rows that are        | warp  | warp  |
//       G's rows                    |   0   |   1   |  each number: sums of 64 products by tensor cores, added in
//       +----+----+----+----+       +-------+-------+  single precision
//       | 64 | 64 | 64 | .. |       | warp  | warp  |
//       +----+----+----+----+       |   2   |   3   |
//       model_dim                   +-------+-------+
//
// grid       (ceil(head_dim / 64), ceil(head_dim / 64), query_heads)
// block      128
// shared     55,296 bytes
// registers  114 (sm_80), 120 (sm_90a)
// bytes      read: 256 model_dim for each block, from the L2 cache but for the first reader; written: 4 query_heads head_dim^2
// FLOP       2 query_heads head_dim^2 model_dim on tensor cores, head_dim padded to a multiple of 64
template <Storage16 T>
__global__ void __launch_bounds__(kThreads) gram_mma_kernel(DeviceTensor<const T> projection, float* gram) {
  SharedMemory memory;
  const Shared shared(memory);
  const Sections<T> sections(projection);
  for (int n = 0; n < kStages - 1; ++n) sections.load(n, shared.stages);
  GramTile tile;
  const int row = warp() / 2 * kWarpTile, column = warp() % 2 * kWarpTile;
  for (int n = 0; n < sections.count; ++n) {
    async_wait<kStages - 2>();
    __syncthreads();  // all threads see section n, and none reads the stage that is filled next
    sections.load(n + kStages - 1, shared.stages);
    const uint4* const stage = shared.stages + n % kStages * 2 * kSide;
    constexpr int kStride = PaddedRows<kSteps>::kStride;
    tile.add<T>(stage + row * kStride, stage + kSide + column * kStride);
  }
  const auto head_dim = static_cast<int>(projection.rows);
  tile.store(gram + int64_t{blockIdx.z} * head_dim * head_dim, sections.row + row, sections.column + column,
             head_dim);
}

}  // namespace

template <Storage16 T>
void launch_gram_mma(const DeviceTensor<const T>& output_projection, float* gram, Stream stream) {
  const int64_t tiles = ceil_division(output_projection.rows, kBlockTile);
  launch<gram_mma_kernel<T>>(
      {extent(tiles, tiles, output_projection.slices), extent(kThreads), shared_bytes<Shared>(), stream},
      output_projection, gram);
}
template void launch_gram_mma(const DeviceTensor<const Float16>&, float*, Stream);
template void launch_gram_mma(const DeviceTensor<const Bfloat16>&, float*, Stream);

// Sections are added in their order.
int64_t mma_gram_depth(int64_t model_dim) { return ceil_division(model_dim, kSteps * kStepNumbers); }

double mma_gram_sums(int64_t model_dim) {
  const double of_chain = static_cast<double>(row_product_chain(model_dim)) * kChainedTensorSums;
  return of_chain * (1 + of_chain);
}

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
