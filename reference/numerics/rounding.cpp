#include "rounding.hpp"

#include <algorithm>
#include <bit>

#include <kvbound/reference/core/float16.hpp>

namespace kvbound::reference {
namespace {

constexpr size_t kAtOnce = 4 * kLanes;  // whole vectors by four of them

// rounded[v * L::kWidth + l] = the v-th 16 bits of number l, v < 4.
template <class L>
[[gnu::always_inline]] inline void store_transposed(const typename L::Bits& four, uint16_t* rounded) {
  using Halves = typename L::Halves;
  const Halves halves = reinterpret_cast<Halves>(four);
  Halves order{};
  for (size_t j = 0; j < 4 * L::kWidth; ++j)
    order[j] = static_cast<uint16_t>(4 * (j % L::kWidth) + j / L::kWidth);
#ifdef __clang__  // which has no shuffle in an order that is a vector
  for (size_t j = 0; j < 4 * L::kWidth; ++j) rounded[j] = halves[order[j]];
#else
  const Halves transposed = __builtin_shuffle(halves, order);
  std::memcpy(rounded, &transposed, sizeof transposed);
#endif
}

// Rounds `count` numbers, a multiple of four vectors' numbers, without branches, if every one is finite and
// normal in the format; or else returns false. The bits of a double's magnitude, taken as an integer, grow
// with it: nearly half a unit of the last place that the format has is added to them, a whole half if that
// place is odd, and what lies behind it cut off. A carry raises the exponent, also to that of infinity.
template <int exponent_bits, class L>
[[gnu::always_inline]] inline bool round_usual(const double* numbers, size_t count, uint16_t* rounded) {
  using Format = kvbound::detail::Format16<exponent_bits>;
  using Bits = typename L::Bits;
  constexpr int kCut = 52 - Format::kFraction;
  constexpr uint64_t kAlmostHalf = (uint64_t{1} << (kCut - 1)) - 1;
  constexpr uint64_t kRebias = uint64_t{1023 - Format::kBias} << Format::kFraction;
  constexpr uint64_t kLeast = uint64_t{1023 - Format::kBias + 1} << 52;
  constexpr uint64_t kMost = (uint64_t{1023 - Format::kBias + Format::kMaxExponent} << 52) - 1;
  Bits unusual{};
  for (size_t i = 0; i < count; i += 4 * L::kWidth) {
    Bits four{};  // of each of four vectors 16 bits
    for (size_t v = 0; v < 4; ++v) {
      typename L::Reals loaded;
      L::load(numbers + i + v * L::kWidth, loaded);
      const Bits bits = reinterpret_cast<Bits>(loaded), magnitude = bits & ~(uint64_t{1} << 63);
      unusual |= (magnitude - kLeast) | (kMost - magnitude);  // the uppermost bits
      const Bits kept = ((magnitude + kAlmostHalf + (magnitude >> kCut & 1)) >> kCut) - kRebias;
      four |= ((bits >> 48 & 0x8000) | kept) << (16 * v);
    }
    store_transposed<L>(four, rounded + i);
  }
  uint64_t any = 0;
  for (size_t l = 0; l < L::kWidth; ++l) any |= unusual[l];
  return any >> 63 == 0;
}

template <int exponent_bits>
void round_rows(MatrixView numbers, uint16_t* rounded, int64_t row_stride, InstructionSet level) {
  const auto one_by_one = [](const double* first, size_t count, uint16_t* to) {
    std::transform(first, first + count, to, kvbound::detail::Format16<exponent_bits>::round);
  };
  run_at(
      std::min(level, InstructionSet::avx2),  // 512 bits could not be transposed
      [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        for (int64_t r = 0; r < numbers.rows; ++r) {
          const VectorView row = numbers.row(r);
          size_t count = 0;
          for (size_t i = 0; i < row.size(); i += count) {
            const double* const from = row.data() + i;
            uint16_t* const to = rounded + r * row_stride + static_cast<int64_t>(i);
            count = std::min(kAtOnce, row.size() - i);
            const size_t whole = count / (4 * L::kWidth) * (4 * L::kWidth);
            if (!round_usual<exponent_bits, L>(from, whole, to)) one_by_one(from, whole, to);
            one_by_one(from + whole, count - whole, to + whole);
          }
        }
      });
}

}  // namespace

void round_to_float16(MatrixView numbers, uint16_t* rounded, int64_t row_stride, InstructionSet level) {
  round_rows<5>(numbers, rounded, row_stride, level);
}

void round_to_bfloat16(MatrixView numbers, uint16_t* rounded, int64_t row_stride, InstructionSet level) {
  round_rows<8>(numbers, rounded, row_stride, level);
}

bool widen(std::span<const float> numbers, double* widened) {
  uint32_t carry = 0;  // into the sign, of exponents that are all ones
  for (size_t i = 0; i < numbers.size(); ++i) {
    constexpr uint32_t kMagnitude = 0x7fff'ffff, kUnit = 0x0080'0000;
    carry |= (std::bit_cast<uint32_t>(numbers[i]) & kMagnitude) + kUnit;
    widened[i] = numbers[i];
  }
  return carry >> 31 == 0;
}

}  // namespace kvbound::reference
