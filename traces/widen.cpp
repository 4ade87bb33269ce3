// Loops without branches over blocks that stay in the first cache, which compilers make vector code of.
#include "widen.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "half_numbers.hpp"

namespace kvbound::traces {
namespace {

constexpr size_t kBlock = 1024;

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
