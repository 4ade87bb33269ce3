// Conversion to and from the 16-bit storage formats, correctly rounded once (to nearest, ties to even).
//
// Going through float would round twice: 1 + 2^-11 + 2^-40 becomes the tie 1 + 2^-11 in float and then 1 in
// half, where the nearest half is 1 + 2^-10.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace kvbound {

namespace detail {

/// A binary format of 16 bits: sign, exponent, fraction.
template <int exponent_bits>
struct Format16 {
  static constexpr int kFraction = 15 - exponent_bits;
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int kMaxExponent = (1 << exponent_bits) - 1;
  static constexpr uint16_t kInfinity = kMaxExponent << kFraction;
  static constexpr uint16_t kQuietNan = kInfinity | (1 << (kFraction - 1));

  static constexpr uint16_t round(double number) {
    const auto bits = std::bit_cast<uint64_t>(number);
    const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
    const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
    if (exponent == 0x7ff) return sign | (fraction ? kQuietNan : kInfinity);
    const int rebiased = exponent - 1023 + kBias;
    if (rebiased >= kMaxExponent) return sign | kInfinity;
    // Significand in units of the result's last place; a carry out of the fraction raises the exponent.
    const int subnormal_shift = rebiased > 0 ? 0 : 1 - rebiased;
    const int shift = 52 - kFraction + subnormal_shift;
    if (exponent == 0 || shift > 54) return sign;
    const uint64_t significand = fraction | uint64_t{1} << 52;
    const uint64_t kept = significand >> shift;
    const uint64_t rest = significand & ((uint64_t{1} << shift) - 1);
    const uint64_t half = uint64_t{1} << (shift - 1);
    const uint64_t up = rest > half || (rest == half && (kept & 1)) ? 1 : 0;
    const uint64_t base = rebiased > 0 ? static_cast<uint64_t>(rebiased - 1) << kFraction : 0;
    return sign | static_cast<uint16_t>(base + kept + up);
  }

  static constexpr double widen(uint16_t bits) {
    const uint64_t sign = static_cast<uint64_t>(bits & 0x8000) << 48;
    const int exponent = bits >> kFraction & kMaxExponent;
    const uint64_t fraction = bits & ((1u << kFraction) - 1);
    if (exponent == kMaxExponent) {
      return std::bit_cast<double>(sign | uint64_t{0x7ff} << 52 | fraction << (52 - kFraction));
    }
    if (exponent == 0) {
      const double unit = std::bit_cast<double>(uint64_t{1023 + 1 - kBias - kFraction} << 52);
      const double magnitude = static_cast<double>(fraction) * unit;
      return sign ? -magnitude : magnitude;
    }
    const uint64_t rebiased = static_cast<uint64_t>(exponent) + (1023 - kBias);
    return std::bit_cast<double>(sign | rebiased << 52 | fraction << (52 - kFraction));
  }
};

}  // namespace detail

/// IEEE binary16: 5 exponent bits, 10 fraction bits, unit roundoff 2^-11. Overflow becomes infinity.
constexpr uint16_t to_float16(double number) { return detail::Format16<5>::round(number); }
constexpr double from_float16(uint16_t bits) { return detail::Format16<5>::widen(bits); }

/// bfloat16: 8 exponent bits, 7 fraction bits, unit roundoff 2^-8. Overflow becomes infinity.
constexpr uint16_t to_bfloat16(double number) { return detail::Format16<8>::round(number); }
constexpr double from_bfloat16(uint16_t bits) { return detail::Format16<8>::widen(bits); }

}  // namespace kvbound
