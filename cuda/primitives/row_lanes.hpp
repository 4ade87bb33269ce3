// Rows of numbers of which some lanes of a warp have one together, by vectors of 16 bytes: r, r + kLanes, ...
// for the r-th of kLanes lanes. For head_dim 128 of 16-bit numbers:
//
//     lanes    0         1         ...  15        16 ..
//              8 columns 8 columns      8 columns
//              |_________ one row ____________|  |___ another row ___ ...
//
// A warp loads four times as many rows before it uses the first, so that their loads are in flight together.
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernel.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

inline constexpr int kRowsInFlight = 4;  // of a lane

/// head_dim, at most 256, rounded up to a size that kernels are compiled for.
__host__ __device__ constexpr int64_t dims_of(int64_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

/// Returns call(std::integral_constant<int, dims_of(head_dim)>).
template <class Call>
auto by_dims(int64_t head_dim, const Call& call) {
  switch (dims_of(head_dim)) {
    case 64:
      return call(std::integral_constant<int, 64>());
    case 128:
      return call(std::integral_constant<int, 128>());
    default:
      return call(std::integral_constant<int, 256>());
  }
}

/// Which lanes have a row, and what of it.
///
/// kDims  of by_dims
template <Storage T, int kDims>
struct RowLanes {
  static constexpr int kVectorNumbers = static_cast<int>(kVector<T>);
  static constexpr int kLanes = std::min(32, kDims / kVectorNumbers);
  static constexpr int kVectors = kDims / kVectorNumbers / kLanes;  // of a lane
  static constexpr int kNumbers = kVectors * kVectorNumbers;        // of a lane
  static constexpr int kRowsAtOnce = 32 / kLanes;                   // of a warp
  static constexpr int kWarpRows = kRowsAtOnce * kRowsInFlight;
  static_assert(kLanes >= kRowsInFlight, "each row in flight has a lane of its own");

  /// Roundings that a product of two rows passes if a lane adds its products by fmaf, one after the other,
  /// and then lanes add their sums by pairs.
  static constexpr int64_t kProductDepth = kNumbers + std::countr_zero(static_cast<unsigned>(kLanes));

#if !defined(KVBOUND_CUDA_NATIVE) || defined(__CUDACC__)  // for kernels
  /// The calling lane's place among those of its row.
  __device__ static int lane_in_row() { return lane() % kLanes; }
  /// The lane's row among those that the warp loads at once.
  __device__ static int row() { return lane() / kLanes; }
  /// The first column of a lane's vector.
  __device__ static int column(int vector) { return (lane_in_row() + vector * kLanes) * kVectorNumbers; }
#endif
};

/// kProductDepth for rows of head_dim numbers.
template <Storage T>
int64_t product_depth_of_lanes(int64_t head_dim) {
  return by_dims(head_dim, []<int kDims>(std::integral_constant<int, kDims>) {
    return RowLanes<T, kDims>::kProductDepth;
  });
}

#if !defined(KVBOUND_CUDA_NATIVE) || defined(__CUDACC__)  // for kernels

/// A row's vectors as they are stored, which become numbers only where they are used: so all loads of several
/// rows stand before the first use. Zeros without a row, and behind head_dim.
template <Storage T, int kDims>
struct LoadedRow {
  using Lanes = RowLanes<T, kDims>;

  uint4 vectors[Lanes::kVectors];

  /// from    the number that the lane's first vector begins with; is read if the row exists
  /// exists  the same for all lanes of the row
  __device__ void load(const T* from, bool exists, int head_dim) {
#pragma unroll
    for (int v = 0; v < Lanes::kVectors; ++v) {
      vectors[v] = {0, 0, 0, 0};
      if (exists && Lanes::column(v) < head_dim) {
        vectors[v] = *reinterpret_cast<const uint4*>(from + v * (Lanes::kLanes * Lanes::kVectorNumbers));
      }
    }
  }
  /// lanes  the number that the lane's first vector of row 0 begins with
  /// row    negative: none
  __device__ void load(const T* lanes, int row, uint32_t row_stride, int head_dim) {
    load(lanes + static_cast<uint64_t>(static_cast<uint32_t>(row)) * row_stride, row >= 0, head_dim);
  }
  /// The i-th of this lane's numbers.
  __device__ float number(int i) const {
    constexpr int kOfWord = Lanes::kVectorNumbers / 4;
    const uint4& vector = vectors[i / Lanes::kVectorNumbers];
    const int place = i % Lanes::kVectorNumbers / kOfWord;
    const uint32_t word = place == 0 ? vector.x : place == 1 ? vector.y : place == 2 ? vector.z : vector.w;
    if constexpr (kOfWord == 1) {
      return __uint_as_float(word);
    } else {
      return to_float(T{static_cast<uint16_t>(word >> (i % 2 * 16))});
    }
  }
};

/// Sums each of kCount numbers over every `lanes` successive lanes, as those that share a row; both are
/// powers of two. Lane l of them then has, in front, the sums of the numbers from l kCount / lanes on, or, if
/// there are more lanes than numbers, of that number. Lanes exchange half of their numbers, then a
/// quarter, ...: all sums together take kCount - 1 shuffles for up to as many lanes as numbers, where
/// warp_sum would take one for each number and halving. The whole warp calls it.
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

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
