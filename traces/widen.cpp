// Loops without branches over blocks that stay in the first cache, which compilers make vector code of.
#include "widen.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kvbound::traces {
namespace {

constexpr size_t kBlock = 1024;

// IEEE binary16 as binary32. Subnormal numbers are made of integers: products with subnormal factors are
// slow. Selects by masks, because compilers make branches of conditions that choose between floats.
float from_half(uint16_t half) {
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

float from_bfloat(uint16_t bfloat) { return std::bit_cast<float>(uint32_t{bfloat} << 16); }

// Bits        an unsigned integer of the numbers' size
// infinity    the bits of infinity: no finite number without its sign has larger ones
template <class Bits, class Convert>
bool widen_all(std::span<const char> bytes, std::span<double> out, Bits infinity, const Convert& convert) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max() >> 1;
  std::array<Bits, kBlock> stored;
  Bits not_finite = 0;
  for (size_t begin = 0; begin < out.size(); begin += kBlock) {
    const size_t count = std::min(kBlock, out.size() - begin);
    std::memcpy(stored.data(), bytes.data() + begin * sizeof(Bits),
                count * sizeof(Bits));  // may be misaligned
    double* const block = out.data() + begin;
    for (size_t i = 0; i < count; ++i) block[i] = convert(stored[i]);
    for (size_t i = 0; i < count; ++i) not_finite |= static_cast<Bits>((stored[i] & kMagnitude) >= infinity);
  }
  return not_finite == 0;
}

}  // namespace

bool widen(Dtype dtype, std::span<const char> bytes, std::span<double> out) {
  if (dtype == Dtype::f64) {
    return widen_all<uint64_t>(bytes, out, uint64_t{0x7ff} << 52,
                               [](uint64_t x) { return std::bit_cast<double>(x); });
  }
  if (dtype == Dtype::f32) {
    return widen_all<uint32_t>(bytes, out, 0x7f800000u,
                               [](uint32_t x) { return double{std::bit_cast<float>(x)}; });
  }
  if (dtype == Dtype::f16)
    return widen_all<uint16_t>(bytes, out, 0x7c00, [](uint16_t x) { return double{from_half(x)}; });
  return widen_all<uint16_t>(bytes, out, 0x7f80, [](uint16_t x) { return double{from_bfloat(x)}; });
}

}  // namespace kvbound::traces
