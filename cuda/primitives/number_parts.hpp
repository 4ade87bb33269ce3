// Single-precision numbers as operands of tensor cores, which multiply 16-bit numbers:
// as sums of such numbers.
#pragma once

#include <type_traits>

#include "tensor_core.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// A single-precision number as 16-bit numbers, which tensor cores multiply exactly.
///
///     BF16   x         the sum of three parts of 8 bits: all of a single-precision number's 24
///     FP16   scale x   a part of 11 bits, and one of 2^11 times the rest: off by 2^-23 of the number, or by
///                      2^-36, which is 2^-50 of the largest number, which is scaled to 2^14 or more
template <Storage16 T>
struct NumberParts {
  static constexpr bool kScales = std::is_same_v<T, Float16>;
  static constexpr int kCount = kScales ? 2 : 3;
  static constexpr float kShift = kScales ? 0x1p11F : 1;  ///< of each part to the next
  static constexpr double kRounding = kScales ? 0x1p-23 : 0;
  static constexpr double kFloor = kScales ? 0x1p-50 : 0;

  /// The parts of two numbers, the first one in the low halves; the largest part first.
  uint32_t pairs[kCount];

  __device__ NumberParts(float first, float second) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      pairs[i] = to_storage_pair<T>(first, second);
      first = (first - to_float(T{static_cast<uint16_t>(pairs[i])})) * kShift;
      second = (second - to_float(T{static_cast<uint16_t>(pairs[i] >> 16)})) * kShift;
    }
  }

  /// The power of two by which numbers are multiplied of which `largest` is the largest
  /// absolute value, where kScales.
  __device__ static float scale_of(float largest) {
    constexpr int kBias = 127, kMost = 14;
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - kBias;
    return __uint_as_float(static_cast<unsigned>(min(kMost - exponent, kBias - 1) + kBias) << 23);
  }
};

/// Two successive numbers of a row, zeros for those behind its end. Rows of an even number begin on 8 bytes.
__device__ inline float2 load_pair(const float* row, int column, int columns) {
  if (columns % 2 == 0) {
    return column < columns ? *reinterpret_cast<const float2*>(row + column) : float2{0, 0};
  }
  return {column < columns ? row[column] : 0, column + 1 < columns ? row[column + 1] : 0};
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
