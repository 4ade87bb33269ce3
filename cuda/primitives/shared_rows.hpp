// Rows of stored numbers, each of which some lanes of a warp share: a lane has vectors of 16 bytes. For head_dim 128 of 16-bit
// numbers:
//
//     lanes    0         1         ...  15        16 ..
//              8 columns 8 columns      8 columns
//              |______ a row __________________|  |__ another row __ ...
#pragma once

#include <algorithm>
#include <bit>

#include "kernel.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace shared_rows {

/// How kLanes lanes share a row. Of several vectors a lane has every kLanes-th one.
///
/// kDims  head_dim, rounded up to 64, 128 or 256
template <Storage T, int kDims>
struct SharedRow {
  static constexpr int kVectorNumbers = static_cast<int>(kVector<T>);
  static constexpr int kLanes = std::min(32, kDims / kVectorNumbers);
  static constexpr int kVectors = kDims / kVectorNumbers / kLanes;  // of a lane
  static constexpr int kNumbers = kVectors * kVectorNumbers;        // of a lane
  static constexpr int kWarpRows = 32 / kLanes;                     // that a warp has at a time

  /// Roundings that a product of two rows passes if a lane adds its products by fmaf, one after the other, and then lanes
  /// add their sums by pairs.
  static constexpr int64_t kProductDepth = kNumbers + std::countr_zero(static_cast<unsigned>(kLanes));

#if !defined(KVBOUND_CUDA_NATIVE) || defined(__CUDACC__)
  /// The calling lane's place among those that share its row.
  __device__ static int lane_in_row() { return lane() % kLanes; }
  /// The row that the lane shares, among those of its warp.
  __device__ static int row_in_warp() { return lane() / kLanes; }
  /// The first column of a lane's vector.
  __device__ static int column(int vector) { return (lane_in_row() + vector * kLanes) * kVectorNumbers; }
#endif
};

#if !defined(KVBOUND_CUDA_NATIVE) || defined(__CUDACC__)
/// Sums each of kCount numbers over every `lanes` successive lanes, as those that share a row; both are powers of two. Lane l of
/// them then has, in front, the sums of the numbers from l kCount / lanes on, or, if there are more lanes than numbers, of that
/// number. Lanes exchange half of their numbers, then a quarter, ...: all sums together take kCount - 1 shuffles for up to as
/// many lanes as numbers, where warp_sum would take one for each number and halving. The whole warp calls it.
template <int lanes, int kCount>
__device__ __forceinline__ void sum_numbers(float (&numbers)[kCount]) {
  static_assert(kCount > 1);
#pragma unroll
  for (int distance = lanes / 2, count = kCount / 2; distance > 0; distance /= 2, count /= 2) {
    if (count == 0) {
      numbers[0] += __shfl_xor_sync(kAllLanes, numbers[0], distance);
      continue;
    }
    const bool upper = (lane() & distance) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= count) break;
      const float other = __shfl_xor_sync(kAllLanes, upper ? numbers[i] : numbers[i + count], distance);
      numbers[i] = (upper ? numbers[i + count] : numbers[i]) + other;
    }
  }
}
#endif

/// Returns call.operator()<kDims>() for rows of head_dim numbers, 1 to 256.
template <class Call>
auto for_dims(int64_t head_dim, const Call& call) {
  if (head_dim <= 64) return call.template operator()<64>();
  if (head_dim <= 128) return call.template operator()<128>();
  return call.template operator()<256>();
}

/// kProductDepth for rows of head_dim numbers.
template <Storage T>
int64_t product_depth(int64_t head_dim) {
  return for_dims(head_dim, []<int kDims>() { return SharedRow<T, kDims>::kProductDepth; });
}

}  // namespace shared_rows
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
