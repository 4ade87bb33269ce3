// The storage types of traces and dumps, by their safetensors names.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvbound {

enum class Dtype {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  c64,
  f8_e4m3,
  f8_e5m2,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  f8_e8m0,
  f6_e2m3,
  f6_e3m2,
  f4
};

struct DtypeTraits {
  Dtype dtype;
  std::string_view name;
  int64_t bits;  ///< of a number; a tensor has whole bytes
};

inline constexpr std::array<DtypeTraits, 22> kDtypes{{
    {Dtype::f64, "F64", 64},
    {Dtype::f32, "F32", 32},
    {Dtype::f16, "F16", 16},
    {Dtype::bf16, "BF16", 16},
    {Dtype::i64, "I64", 64},
    {Dtype::i32, "I32", 32},
    {Dtype::i16, "I16", 16},
    {Dtype::i8, "I8", 8},
    {Dtype::u64, "U64", 64},
    {Dtype::u32, "U32", 32},
    {Dtype::u16, "U16", 16},
    {Dtype::u8, "U8", 8},
    {Dtype::boolean, "BOOL", 8},
    {Dtype::c64, "C64", 64},
    {Dtype::f8_e4m3, "F8_E4M3", 8},
    {Dtype::f8_e5m2, "F8_E5M2", 8},
    {Dtype::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    {Dtype::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    {Dtype::f8_e8m0, "F8_E8M0", 8},
    {Dtype::f6_e2m3, "F6_E2M3", 6},
    {Dtype::f6_e3m2, "F6_E3M2", 6},
    {Dtype::f4, "F4", 4},
}};

constexpr const DtypeTraits& traits(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)]; }
constexpr std::string_view name(Dtype dtype) { return traits(dtype).name; }
/// Bytes of a number of a type that has whole bytes.
constexpr int64_t size_of(Dtype dtype) { return traits(dtype).bits / 8; }
/// Bytes of so many numbers; nullopt if that is no whole number or not below 2^63.
constexpr std::optional<int64_t> bytes_of(Dtype dtype, int64_t numbers) {
  const int64_t bits = traits(dtype).bits, rest = numbers % 8 * bits;
  int64_t bytes = 0;
  const bool overflows =
      __builtin_mul_overflow(numbers / 8, bits, &bytes) || __builtin_add_overflow(bytes, rest / 8, &bytes);
  return overflows || rest % 8 != 0 ? std::nullopt : std::optional(bytes);
}

constexpr std::optional<Dtype> dtype_named(std::string_view name) {
  for (const DtypeTraits& candidate : kDtypes) {
    if (candidate.name == name) return candidate.dtype;
  }
  return std::nullopt;
}

/// A binary format of real numbers: fraction * 2^exponent with
/// 1 <= fraction < 2, which has `fraction_bits` bits behind the binary point.
struct RealFormat {
  int fraction_bits;
  int least_exponent;  ///< of normal numbers
  int largest_exponent;

  /// The largest relative error of rounding to a normal number.
  double unit_roundoff() const { return std::ldexp(1, -fraction_bits - 1); }
  /// The smallest subnormal number; rounding to a subnormal errs by at most half of it.
  double smallest_subnormal() const { return std::ldexp(1, least_exponent - fraction_bits); }
};

/// The number format of a type in which a trace may store real numbers; nullopt for the other types.
constexpr std::optional<RealFormat> real_format(Dtype dtype) {
  if (dtype == Dtype::f64) return RealFormat{52, -1022, 1023};
  if (dtype == Dtype::f32) return RealFormat{23, -126, 127};
  if (dtype == Dtype::f16) return RealFormat{10, -14, 15};
  if (dtype == Dtype::bf16) return RealFormat{7, -126, 127};
  return std::nullopt;
}

/// Whether a trace may store real numbers in this type.
constexpr bool is_real(Dtype dtype) { return real_format(dtype).has_value(); }

}  // namespace kvbound
