// Products of rows of 16-bit numbers by tensor cores: of rows in shared memory, 16 at a time, and of rows
// that a warp has in registers, 8 in a tile. Rows are padded with zeros to kSteps steps of 16 numbers.
#pragma once

#include "async_copy.hpp"
#include "tensor_core.hpp"
#include "token_tile.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Numbers of a step, which m16n8k16 multiplies at a time.
inline constexpr int kStepNumbers = 16;
/// Rows in shared memory that are multiplied at a time, and rows in registers of one tile.
inline constexpr int kRowsAtOnce = 16;
inline constexpr int kFragmentRows = 8;
/// Steps whose sums tensor cores chain; the sums of chains are added in single precision. A longer chain
/// takes fewer additions, and has a wider error bound (reference/bounds/error_bounds.md, "The model").
inline constexpr int kRowChain = 4;

/// The tensor_chain and product_depth (KernelArithmetic) of products of rows of so many numbers.
constexpr int64_t row_product_chain(int64_t numbers) {
  return std::clamp(ceil_division(numbers, kStepNumbers), int64_t{1}, int64_t{kRowChain});
}
constexpr int64_t row_product_depth(int64_t numbers) {
  return std::max(ceil_division(numbers, kStepNumbers * kRowChain) - 1, int64_t{0});
}

/// Calls work(std::integral_constant<int, kSteps>()) with the steps that rows of so many numbers, at most
/// 256, are padded to: 4, 5, 6, 8, 12 or 16.
template <class Work>
void with_row_steps(int64_t numbers, const Work& work) {
  const int64_t steps = ceil_division(numbers, kStepNumbers);
  if (steps <= 4) return work(std::integral_constant<int, 4>());
  if (steps <= 5) return work(std::integral_constant<int, 5>());
  if (steps <= 6) return work(std::integral_constant<int, 6>());
  if (steps <= 8) return work(std::integral_constant<int, 8>());
  if (steps <= 12) return work(std::integral_constant<int, 12>());
  work(std::integral_constant<int, 16>());
}

/// The same for kernels with fewer instances: 4, 8 or 16.
template <class Work>
void with_few_row_steps(int64_t numbers, const Work& work) {
  if (numbers <= 4 * kStepNumbers) return work(std::integral_constant<int, 4>());
  if (numbers <= 8 * kStepNumbers) return work(std::integral_constant<int, 8>());
  work(std::integral_constant<int, 16>());
}

/// Rows in shared memory. From one to the next there is an odd number of vectors of 16 bytes, so that
/// ldmatrix reads the same vector of eight rows from different banks.
template <int kSteps>
struct PaddedRows {
  static constexpr int kVectors = 2 * kSteps;  // of a row
  static constexpr int kStride = kVectors + 1;

  /// What a thread copies of rows: the same vector of every few rows, or zeros for one
  /// behind the rows' numbers.
  struct Share {
    const uint4* from;  // its vector of the first row that the thread copies
    int stride;         // vectors from row to row
    int row, to;        // its first row, and where that goes in the copy
    int bytes;

    Share() = default;
    /// Of the rows from `first` on. There are kVectors threads in the block, or more.
    __device__ Share(const TokenRows& rows, int64_t first)
        : stride(static_cast<int>(rows.stride)), row(static_cast<int>(threadIdx.x) / kVectors) {
      const int vector = static_cast<int>(threadIdx.x) % kVectors;
      const bool exists = vector < rows.vectors;
      from = rows.data + (first + row) * rows.stride + (exists ? vector : 0);
      to = row * kStride + vector;
      bytes = exists ? 16 : 0;
    }

    /// Starts to copy the rows skipped..skipped + count - 1 of these. All threads of the block call it.
    __device__ void copy(int skipped, int count, uint4* copied) const {
      const int step = static_cast<int>(blockDim.x) / kVectors;
      if (row >= step) return;
      const uint4* next = from + int64_t{skipped} * stride;
      copied += to;
#pragma unroll(kSteps <= 8 ? 4 : 1)
      for (int r = row; r < count; r += step, next += step * stride, copied += step * kStride) {
        async_copy16(copied, next, bytes);
      }
    }
  };
};

/// A warp's rows in registers, the B operands of m16n8k16.
template <int kSteps, int kTiles>
struct RowFragments {
  uint32_t words[kTiles][kSteps][2];

  /// Rows first..first + 8 kTiles - 1 of a slice that has `count` rows, zeros for those that it does not
  /// have. The whole warp calls it.
  ///
  /// memory  [kFragmentRows, PaddedRows<kSteps>::kStride], shared memory that other warps do not use
  __device__ void load(const TokenRows& rows, int64_t first, int64_t count, uint4* memory) {
    using Rows = PaddedRows<kSteps>;
    constexpr int kAtOnce = 32 / Rows::kVectors, kLoads = (kFragmentRows + kAtOnce - 1) / kAtOnce;
    const int row = lane() / Rows::kVectors, vector = lane() % Rows::kVectors;
    const bool copies = row < kAtOnce, exists = copies && vector < rows.vectors;
    const auto left = static_cast<int>(min(count - first - row, int64_t{kTiles * kFragmentRows}));
    const uint4* const from = rows.data + (first + row) * rows.stride + vector;
    uint4* const to = memory + row * Rows::kStride + vector;
    uint4 loaded[kTiles][kLoads];  // all of them, before the first is waited for
#pragma unroll
    for (int i = 0; i < kTiles * kLoads; ++i) {
      const int next = i / kLoads * kFragmentRows + i % kLoads * kAtOnce;
      const bool is_own = i % kLoads * kAtOnce + row < kFragmentRows;  // else it is the next tile's
      loaded[i / kLoads][i % kLoads] =
          is_own && exists && next < left ? from[next * rows.stride] : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (copies && i * kAtOnce + row < kFragmentRows) to[i * kAtOnce * Rows::kStride] = loaded[tile][i];
      }
      __syncwarp();
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        uint32_t four[4];  // 8 numbers of 8 rows each; there may be no second step
        ldmatrix_x4(four,
                    memory + lane() % 8 * Rows::kStride + min(2 * step + lane() / 8, Rows::kVectors - 1));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (step + i / 2 < kSteps) words[tile][step + i / 2][i % 2] = four[i];
        }
      }
      __syncwarp();
    }
  }
};

/// The products of 16 rows in shared memory and all rows of `own`, as C operands: lane l has those of rows
/// l / 4 and l / 4 + 8 with rows 2 (l % 4) and 2 (l % 4) + 1 of each tile. The whole warp calls it.
///
/// rows  as PaddedRows<kSteps>
template <Storage16 T, int kSteps, int kTiles>
__device__ __forceinline__ void form_products(const uint4* rows, const RowFragments<kSteps, kTiles>& own,
                                              float (&products)[kTiles][4]) {
  const uint4* const from = rows + lane() % 16 * PaddedRows<kSteps>::kStride + lane() / 16;
#pragma unroll
  for (int first = 0; first < kSteps; first += kRowChain) {
    float chain[kTiles][4] = {};
#pragma unroll
    for (int step = first; step < first + kRowChain && step < kSteps; ++step) {
      uint32_t a[4];
      ldmatrix_x4(a, from + 2 * step);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) mma_m16n8k16<T>(chain[tile], a, own.words[tile][step]);
    }
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      float& sum = products[i / 4][i % 4];
      sum = first == 0 ? chain[i / 4][i % 4] : sum + chain[i / 4][i % 4];
    }
  }
}

/// 16 numbers of 16 rows in shared memory: an A operand, or two B operands of eight rows each.
struct RowTile {
  uint32_t words[4];

  /// rows    as PaddedRows<kSteps>
  /// vector  the first of two that have the numbers
  template <int kSteps>
  __device__ static RowTile load(const uint4* rows, int vector) {
    RowTile tile;
    ldmatrix_x4(tile.words, rows + lane() % 16 * PaddedRows<kSteps>::kStride + vector + lane() / 16);
    return tile;
  }
  /// Adds this tile's products with 16 rows.   sums  [rows / 8 of `by`], C operands
  template <Storage16 T>
  __device__ void add_product(float (&sums)[2][4], const RowTile& by) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t b[2] = {by.words[half], by.words[half + 2]};
      mma_m16n8k16<T>(sums[half], words, b);
    }
  }
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
