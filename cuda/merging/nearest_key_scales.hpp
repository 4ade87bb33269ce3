// The powers of two by which the search on tensor cores multiplies keys.
//
// Products of stored BF16 keys may overflow or underflow. A key whose length is outside
// kLeastLength..kMostLength is therefore multiplied by a power of two where it is loaded, which its
// cosines do not depend on.
#pragma once

#include <kvbound/cuda/primitives/tensor_core.hpp>

#include "nearest_key_search.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace nearest_key_search {

// The products of two keys of such lengths, and all sums on the way, are 2^120 at most. Each of less than 2
// head_dim operations loses at most 2^-126 to underflow, all of them 2 head_dim 2^-30 of the two lengths'
// product: less than 1/50 of the rounding that cosine_error allows for. A number that becomes subnormal by
// rescaling loses 2^-134 of its key's length.
inline constexpr float kLeastLength = 0x1p-48F;
inline constexpr float kMostLength = 0x1p60F;

// The power of two that a key of this length is multiplied by: 1, or one that makes its length about 1. Keys
// of FP16 are 0 or have lengths of 2^-24 to 2^20.
template <Storage16 T>
__device__ float scale_of(float length) {
  if (std::is_same_v<T, Float16> || length == 0) return 1;
  if (!(length < kLeastLength || length > kMostLength)) return 1;  // NaN, too
  const auto exponent = static_cast<int>(__float_as_uint(length) >> 23);
  return __uint_as_float(static_cast<uint32_t>(max(254 - exponent, 1)) << 23);
}

// What a scaled key's products are multiplied by; 0 for zero keys, NaN for NaN.
template <Storage16 T>
__device__ float inverse_of(float length) {
  return length == 0 ? 0 : 1 / (length * scale_of<T>(length));
}

// Two stored numbers, multiplied.
template <Storage16 T>
__device__ uint32_t scaled(uint32_t pair, float scale) {
  const float low = to_float(T{static_cast<uint16_t>(pair & 0xffff)});
  const float high = to_float(T{static_cast<uint16_t>(pair >> 16)});
  return uint32_t{to_storage<T>(low * scale).bits} | uint32_t{to_storage<T>(high * scale).bits} << 16;
}

// 16 bytes of stored numbers, each multiplied.
template <Storage16 T>
__device__ uint4 scaled(const uint4& numbers, float scale) {
  return {scaled<T>(numbers.x, scale), scaled<T>(numbers.y, scale), scaled<T>(numbers.z, scale),
          scaled<T>(numbers.w, scale)};
}

}  // namespace nearest_key_search
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
