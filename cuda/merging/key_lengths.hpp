// Lengths of keys of which some lanes have one together (primitives/row_lanes.hpp).
#pragma once

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace key_lengths {

/// The largest of this lane's numbers, without its sign.
template <Storage T, int kDims>
__device__ float largest_of(const LoadedRow<T, kDims>& key) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < RowLanes<T, kDims>::kNumbers; ++i) most = fmaxf(most, fabsf(key.number(i)));
  return most;
}

/// The sum of the squares of this lane's numbers, each multiplied by `scale`.
template <Storage T, int kDims>
__device__ float squares_of(const LoadedRow<T, kDims>& key, float scale) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < RowLanes<T, kDims>::kNumbers; ++i) {
    const float scaled = key.number(i) * scale;
    sum = fmaf(scaled, scaled, sum);
  }
  return sum;
}

/// The length of the n-th key in the n-th of the lanes that share it, and 0 in lanes that have none. Numbers
/// are multiplied by the power of two that makes the largest one of their key about 1, so that no square
/// overflows, nor one that matters underflows. The whole warp calls it.
template <int kRows, int kDims, Storage T>
__device__ float own_length(const LoadedRow<T, kDims> (&keys)[kRows]) {
  using Lanes = RowLanes<T, kDims>;
  float sum = 0, unit = 0;
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    // Exponents 1..253 have an inverse power of two that is normal, too.
    const uint32_t exponent = __float_as_uint(warp_max<Lanes::kLanes>(largest_of(keys[n]))) >> 23;
    const uint32_t within = min(max(exponent, 1U), 253U);
    const float squares = warp_sum<Lanes::kLanes>(squares_of(keys[n], __uint_as_float((254 - within) << 23)));
    if (Lanes::lane_in_row() == n) sum = squares, unit = __uint_as_float(within << 23);
  }
  return sqrtf(sum) * unit;
}

}  // namespace key_lengths
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
