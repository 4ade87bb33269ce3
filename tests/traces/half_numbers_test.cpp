#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/core/float16.hpp>
#include <kvbound/traces/half_numbers.hpp>

namespace kvbound::traces::half_numbers_test {
namespace {

// Calls check(number) for every finite number of 16 bits, for what lies halfway to the next larger one,
// and for the floats beside both.
template <class Check>
void for_all_ties(double (*widened)(uint16_t), const Check& check) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const double number = widened(static_cast<uint16_t>(bits)),
                 next = widened(static_cast<uint16_t>(bits + 1));
    if (!std::isfinite(number)) continue;
    const auto own = static_cast<float>(number);
    const auto tie = static_cast<float>(std::isfinite(next) ? (number + next) / 2 : number);
    for (const float near : {own, tie}) {
      check(near);
      check(std::nextafter(near, 0.0F));
      check(std::nextafter(near, 2 * near));
    }
  }
}

TEST(HalfNumbers, RoundToTheNearestHalf) {
  for_all_ties(from_float16, [](float number) {
    const auto expected = static_cast<float>(from_float16(to_float16(number)));
    ASSERT_EQ(std::bit_cast<uint32_t>(rounded_to_half(number)), std::bit_cast<uint32_t>(expected)) << number;
  });
  EXPECT_EQ(rounded_to_half(65519.996F), 65504);
  for (const float large : {65520.0F, 65536.0F, 1e30F}) {
    EXPECT_EQ(rounded_to_half(-large), -std::numeric_limits<float>::infinity());
  }
}

TEST(HalfNumbers, RoundToTheNearestBfloat) {
  for_all_ties(from_bfloat16, [](float number) {
    const auto expected = static_cast<float>(from_bfloat16(to_bfloat16(number)));
    ASSERT_EQ(std::bit_cast<uint32_t>(rounded_to_bfloat(number)), std::bit_cast<uint32_t>(expected))
        << number;
  });
  EXPECT_EQ(rounded_to_bfloat(std::numeric_limits<float>::max()), std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace kvbound::traces::half_numbers_test
