// Products of a few rows with a head's Gram matrix or its factor, by one warp.
#pragma once

#include <algorithm>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace gram_rows {

inline constexpr int kMostHeadDim = 256;
inline constexpr int kLaneColumns = kMostHeadDim / 32;

/// Products that are summed separately: partial sums keep the accumulation depth small.
inline constexpr int kPart = 16;

/// Row r of x times G: lane l has the columns l, l + 32, ... The whole warp calls it, after a barrier behind
/// the last write to `rows`.
///
/// rows        [kRows, head_dim] in shared memory
/// gram        [head_dim, head_dim]; null: the identity
/// triangular  whether it has zeros right of the diagonal
template <int kRows>
struct GramRows {
  float numbers[kRows][kLaneColumns];

  __device__ GramRows(const float* rows, const float* gram, int head_dim, bool triangular = false)
      : numbers{} {
    if (!gram) {
      copy(rows, head_dim);
      return;
    }
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      const int column = lane() + 32 * i;
      if (column >= head_dim) break;
      for (int first = triangular ? 32 * i : 0; first < head_dim; first += kPart)
        add_part(rows, gram + column, first, head_dim, i);
    }
  }

  /// The sum of the squares of row r, in all lanes.
  __device__ float square(int r) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) sum += numbers[r][i] * numbers[r][i];
    return warp_sum(sum);
  }
  /// The inner product of row r with `other` [head_dim], in all lanes.
  __device__ float product(int r, const float* other, int head_dim) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      const int column = lane() + 32 * i;
      if (column < head_dim) sum += numbers[r][i] * other[column];
    }
    return warp_sum(sum);
  }

 private:
  __device__ void add_part(const float* rows, const float* gram_column, int first, int head_dim, int i) {
    float part[kRows] = {};
    for (int k = first; k < min(first + kPart, head_dim); ++k) {
      const float g = gram_column[static_cast<int64_t>(k) * head_dim];
#pragma unroll
      for (int r = 0; r < kRows; ++r) part[r] += rows[r * head_dim + k] * g;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) numbers[r][i] += part[r];
  }
  __device__ void copy(const float* rows, int head_dim) {
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      const int column = lane() + 32 * i;
#pragma unroll
      for (int r = 0; r < kRows; ++r) numbers[r][i] = column < head_dim ? rows[r * head_dim + column] : 0;
    }
  }
};

/// The accumulation depth of a number of a row, and of `square` and `product` over the lanes' numbers.
inline int64_t row_depth(int64_t head_dim) {
  return std::min<int64_t>(head_dim, kPart) + ceil_division(head_dim, kPart);
}
inline int64_t lanes_depth(int64_t head_dim) { return ceil_division(head_dim, 32) + 5; }
/// The accumulation depth of `product` with G times a row.
inline int64_t product_depth(int64_t head_dim) { return row_depth(head_dim) + lanes_depth(head_dim); }

/// x . x is never negative, but rounding may make it so. NaN stays NaN.
__device__ inline float not_negative(float square) { return square < 0 ? 0 : square; }

}  // namespace gram_rows
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
