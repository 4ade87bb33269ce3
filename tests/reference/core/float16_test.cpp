// The 16-bit formats against their definition: all values, and every number where rounding
// switches to the next value.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/float16.hpp>
#include <kvbound/reference/core/infinity.hpp>

namespace kvbound::float16_test {
namespace {

/// A format by its definition, slowly: (-1)^sign 2^(exponent - bias) (1 + fraction / 2^fraction_bits).
struct Definition {
  int exponent_bits;
  uint16_t (*round)(double);
  double (*widen)(uint16_t);

  int fraction_bits() const { return 15 - exponent_bits; }
  uint16_t infinity() const { return static_cast<uint16_t>(((1 << exponent_bits) - 1) << fraction_bits()); }

  /// The value of non-negative bits. The bits of infinity get the value that the next larger exponent would
  /// have, since IEEE rounding treats the exponent range as unbounded.
  double magnitude(uint16_t bits) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = bits >> fraction_bits();
    const int fraction = bits & ((1 << fraction_bits()) - 1);
    const int hidden = exponent == 0 ? 0 : 1 << fraction_bits();
    return std::ldexp(hidden + fraction, std::max(exponent, 1) - bias - fraction_bits());
  }
};

const Definition kFloat16{5, to_float16, from_float16};
const Definition kBfloat16{8, to_bfloat16, from_bfloat16};

class SixteenBitFormat : public testing::TestWithParam<Definition> {};

TEST_P(SixteenBitFormat, WidensEveryValueExactly) {
  const Definition format = GetParam();
  for (uint16_t bits = 0; bits < format.infinity(); ++bits) {
    const auto negative = static_cast<uint16_t>(bits | 0x8000);
    ASSERT_EQ(format.widen(bits), format.magnitude(bits)) << bits;
    ASSERT_EQ(format.widen(negative), -format.magnitude(bits)) << bits;
    ASSERT_TRUE(std::signbit(format.widen(negative))) << bits;
  }
  EXPECT_EQ(format.widen(format.infinity()), kInfinity);
  EXPECT_EQ(format.widen(format.infinity() | 0x8000), -kInfinity);
  for (uint32_t bits = format.infinity() + 1u; bits < 0x8000; ++bits) {
    ASSERT_TRUE(std::isnan(format.widen(static_cast<uint16_t>(bits)))) << bits;
    ASSERT_TRUE(std::isnan(format.widen(static_cast<uint16_t>(bits | 0x8000)))) << bits;
  }
}

TEST_P(SixteenBitFormat, RoundsEveryValueToItself) {
  const Definition format = GetParam();
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double value = format.widen(static_cast<uint16_t>(bits));
    const uint16_t again = format.round(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(format.widen(again))) << bits;
    } else {
      ASSERT_EQ(again, bits);
    }
  }
}

TEST_P(SixteenBitFormat, RoundsToTheNearestAndTiesToEven) {
  const Definition format = GetParam();
  for (uint16_t below = 0; below < format.infinity(); ++below) {
    const auto above = static_cast<uint16_t>(below + 1);
    const double middle = (format.magnitude(below) + format.magnitude(above)) / 2;  // exact
    const uint16_t even = below % 2 == 0 ? below : above;
    ASSERT_EQ(format.round(std::nextafter(middle, 0)), below) << below;
    ASSERT_EQ(format.round(middle), even) << below;
    ASSERT_EQ(format.round(std::nextafter(middle, kInfinity)), above) << below;
    ASSERT_EQ(format.round(std::nextafter(-middle, 0)), below | 0x8000) << below;
    ASSERT_EQ(format.round(-middle), even | 0x8000) << below;
    ASSERT_EQ(format.round(std::nextafter(-middle, -kInfinity)), above | 0x8000) << below;
    if (below > 0) {
      ASSERT_EQ(format.round(std::nextafter(format.magnitude(below), 0)), below) << below;
      ASSERT_EQ(format.round(std::nextafter(format.magnitude(below), kInfinity)), below) << below;
    }
  }
}

TEST_P(SixteenBitFormat, KeepsTheSignOfZeroAndOfWhatRoundsToIt) {
  const Definition format = GetParam();
  for (const double tiny : {0.0, std::numeric_limits<double>::denorm_min(), 1e-300, 1e-60}) {
    EXPECT_EQ(format.round(tiny), 0) << tiny;
    EXPECT_EQ(format.round(-tiny), 0x8000) << tiny;
  }
}

TEST_P(SixteenBitFormat, OverflowsToInfinity) {
  const Definition format = GetParam();
  for (const double huge : {1e39, 1e300, std::numeric_limits<double>::max(), kInfinity}) {
    EXPECT_EQ(format.round(huge), format.infinity()) << huge;
    EXPECT_EQ(format.round(-huge), format.infinity() | 0x8000) << huge;
  }
}

TEST_P(SixteenBitFormat, KeepsNaN) {
  const Definition format = GetParam();
  EXPECT_TRUE(std::isnan(format.widen(format.round(std::nan("")))));
  EXPECT_TRUE(std::isnan(format.widen(format.round(-std::nan("1")))));
  EXPECT_TRUE(std::isnan(format.widen(format.round(std::numeric_limits<double>::signaling_NaN()))));
}

INSTANTIATE_TEST_SUITE_P(Float16, SixteenBitFormat, testing::Values(kFloat16));
INSTANTIATE_TEST_SUITE_P(Bfloat16, SixteenBitFormat, testing::Values(kBfloat16));

TEST(Float16, HasTheValuesOfIeeeBinary16) {
  EXPECT_EQ(to_float16(1), 0x3c00);
  EXPECT_EQ(to_float16(65504), 0x7bff);
  EXPECT_EQ(to_float16(0x1p-14), 0x0400);
  EXPECT_EQ(to_float16(0x1p-24), 0x0001);
  EXPECT_EQ(to_float16(0x1p-25), 0x0000);
}

TEST(Bfloat16, HasTheUpperHalfOfAFloat) {
  EXPECT_EQ(to_bfloat16(1), 0x3f80);
  EXPECT_EQ(to_bfloat16(-0x1.fep127), 0xff7f);
  EXPECT_EQ(to_bfloat16(0x1p-133), 0x0001);
}

TEST(Float16, IsNotRoundedTwice) {
  const double number = 1 + 0x1p-11 + 0x1p-40;
  ASSERT_EQ(static_cast<double>(static_cast<float>(number)), 1 + 0x1p-11) << "through float this is a tie";
  EXPECT_EQ(from_float16(to_float16(number)), 1 + 0x1p-10);
}

TEST(Bfloat16, IsNotRoundedTwice) {
  const double number = 1 + 0x1p-8 + 0x1p-40;
  ASSERT_EQ(static_cast<double>(static_cast<float>(number)), 1 + 0x1p-8) << "through float this is a tie";
  EXPECT_EQ(from_bfloat16(to_bfloat16(number)), 1 + 0x1p-7);
}

}  // namespace
}  // namespace kvbound::float16_test
