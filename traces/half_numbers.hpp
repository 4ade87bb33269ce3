// Numbers of 16 bits as float, and float rounded to them, in code without branches that compilers make vector
// code of.
#pragma once

#include <bit>
#include <cstdint>

namespace kvbound::traces {

/// IEEE binary16. Subnormal numbers are made of integers: products with subnormal factors are slow. Selects
/// by masks, because compilers make branches of conditions that choose between floats.
[[gnu::always_inline]] inline float from_half(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + ((127u - 15u) << 23);
  const auto subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t not_finite = (magnitude << 13) | 0x7f800000u;  // infinity and NaN
  const uint32_t is_subnormal = -static_cast<uint32_t>(magnitude < 0x0400);
  const uint32_t is_not_finite = -static_cast<uint32_t>(magnitude >= 0x7c00);
  const uint32_t finite = (subnormal & is_subnormal) | (normal & ~is_subnormal);
  return std::bit_cast<float>(sign | (not_finite & is_not_finite) | (finite & ~is_not_finite));
}

/// bfloat16.
[[gnu::always_inline]] inline float from_bfloat(uint16_t bfloat) {
  return std::bit_cast<float>(uint32_t{bfloat} << 16);
}

/// A finite number rounded to the nearest of IEEE binary16, ties to even; infinity if it is too large.
[[gnu::always_inline]] inline float rounded_to_half(float number) {
  const auto bits = std::bit_cast<uint32_t>(number);
  const uint32_t sign = bits & 0x80000000u, magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0x0fffu + (magnitude >> 13 & 1u)) & ~0x1fffu;
  // Below 2^-14 halves are multiples of 2^-24, as floats from 1/2 to 1 are.
  const auto subnormal = std::bit_cast<uint32_t>((std::bit_cast<float>(magnitude) + 0.5F) - 0.5F);
  const uint32_t is_subnormal = -static_cast<uint32_t>(magnitude < 0x38800000u);
  const uint32_t is_too_large = -static_cast<uint32_t>(normal >= 0x47800000u);  // 2^16
  const uint32_t finite = (subnormal & is_subnormal) | (normal & ~is_subnormal);
  return std::bit_cast<float>(sign | (0x7f800000u & is_too_large) | (finite & ~is_too_large));
}

/// A finite number rounded to the nearest of bfloat16, ties to even; infinity if it is too large.
[[gnu::always_inline]] inline float rounded_to_bfloat(float number) {
  const auto bits = std::bit_cast<uint32_t>(number);
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}

}  // namespace kvbound::traces
