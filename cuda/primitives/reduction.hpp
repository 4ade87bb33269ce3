// Reductions over the lanes of a warp and the threads of a block, in a fixed order: the
// same bits at every call.
//
//     warp   a butterfly: lane l joins its number with that of lane l ^ 16, then l ^ 8, ... l ^ 1; one
//            instruction sums a whole warp's integers of 32 bits, the same in any order
//     block  every warp by itself, then the warps' numbers in their order
#pragma once

#include <type_traits>

#include "kernel.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The larger and the smaller one; of a NaN and a number the number.
struct Larger {
  template <class Number>
  __device__ __forceinline__ Number operator()(Number one, Number other) const {
    if constexpr (std::is_same_v<Number, float>) {
      return fmaxf(one, other);
    } else {
      return max(one, other);
    }
  }
};
struct Smaller {
  template <class Number>
  __device__ __forceinline__ Number operator()(Number one, Number other) const {
    if constexpr (std::is_same_v<Number, float>) {
      return fminf(one, other);
    } else {
      return min(one, other);
    }
  }
};
struct Sum {
  template <class Number>
  __device__ __forceinline__ Number operator()(Number one, Number other) const {
    return one + other;
  }
};

/// Joins the numbers of every `lanes` successive lanes, a power of two, to one, which all of them return.
/// The whole warp calls it.
///
/// join  commutative, so that all lanes return the same
template <int lanes = 32, class Number, class Join>
__device__ __forceinline__ Number join_lanes(Number number, const Join& join) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    number = join(number, __shfl_xor_sync(kAllLanes, number, distance));
  }
  return number;
}
template <int lanes = 32, class Number>
__device__ __forceinline__ Number warp_sum(Number number) {
  if constexpr (lanes == 32 && std::is_integral_v<Number> && sizeof(Number) == sizeof(int)) {
    return __reduce_add_sync(kAllLanes, number);
  } else {
    return join_lanes<lanes>(number, Sum());
  }
}
template <int lanes = 32, class Number>
__device__ __forceinline__ Number warp_max(Number number) {
  return join_lanes<lanes>(number, Larger());
}
template <int lanes = 32, class Number>
__device__ __forceinline__ Number warp_min(Number number) {
  return join_lanes<lanes>(number, Smaller());
}

/// Joins a number of each thread of a block of `warps` warps to one, which all threads return. All
/// threads call it; it has two barriers, the first of which keeps the previous call's numbers until
/// all threads have read them.
///
/// by_warp  [warps], shared memory
template <int warps, class Number, class Join>
__device__ __forceinline__ Number join_block(Number number, Number* by_warp, const Join& join) {
  number = join_lanes(number, join);
  __syncthreads();
  if (lane() == 0) by_warp[warp()] = number;
  __syncthreads();
  number = by_warp[0];
  for (int w = 1; w < warps; ++w) number = join(number, by_warp[w]);
  return number;
}
template <int warps, class Number>
__device__ __forceinline__ Number block_sum(Number number, Number* by_warp) {
  return join_block<warps>(number, by_warp, Sum());
}
template <int warps, class Number>
__device__ __forceinline__ Number block_max(Number number, Number* by_warp) {
  return join_block<warps>(number, by_warp, Larger());
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
