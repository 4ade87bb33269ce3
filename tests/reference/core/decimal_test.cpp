// Decimal numbers are exact where binary fractions are not.
#include <cstdint>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <kvbound/reference/core/decimal.hpp>

namespace kvbound::decimal_test {
namespace {

/// floor(percent * count / 100)
int64_t percent_of(const std::string& percent, int64_t count) {
  return floor_of_product(parse_decimal(percent).value(), count, 2);
}

TEST(Decimal, TakesTwentyPercentOfAThousandAsTwoHundred) { EXPECT_EQ(percent_of("20", 1000), 200); }

TEST(Decimal, IsExactWhereBinaryFractionsAreNot) {
  ASSERT_EQ(static_cast<int64_t>(1000 * (1 - 0.9)), 99) << "the trap that this type is there for";
  EXPECT_EQ(percent_of("10", 1000), 100);
  ASSERT_EQ(static_cast<int64_t>(0.29 * 100), 28);
  EXPECT_EQ(floor_of_product(parse_decimal("0.29").value(), 100), 29);
  EXPECT_EQ(percent_of("57", 100), 57);
  EXPECT_EQ(percent_of("2.5", 1000), 25);
  EXPECT_EQ(percent_of("0.7", 1000), 7);
}

TEST(Decimal, TakesEveryWholePercentOfAHundredAsItself) {
  for (int64_t percent = 0; percent <= 100; ++percent) {
    EXPECT_EQ(percent_of(std::to_string(percent), 100), percent);
    EXPECT_EQ(percent_of(std::to_string(percent), 100000), percent * 1000);
  }
}

TEST(Decimal, RoundsProductsDown) {
  EXPECT_EQ(percent_of("33.3", 10), 3);
  EXPECT_EQ(percent_of("99.99", 1), 0);
  EXPECT_EQ(floor_of_product(parse_decimal("0.5").value(), 7), 3);
}

TEST(Decimal, HoldsTheLargestCountsWithoutOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(percent_of("100", kMost), kMost);
  EXPECT_EQ(floor_of_product(parse_decimal("1").value(), kMost), kMost);
  EXPECT_EQ(floor_of_product(parse_decimal("0.9999999999999").value(), kMost), 9223372036853853469);
  EXPECT_EQ(percent_of("0.00000000000001", kMost), 922);
}

TEST(Decimal, ReadsWhatProgramsPrintForThirds) {
  EXPECT_EQ(parse_decimal("0.3333333333333333"), (Decimal{3333333333333333, 16}));
  EXPECT_EQ(floor_of_product(*parse_decimal("33.333333333333336"), 300, 2), 100);
  EXPECT_EQ(floor_of_product(*parse_decimal("33.333333333333329"), 300, 2), 99);
  EXPECT_EQ(parse_decimal("000000000000000000000000000008"), (Decimal{8, 0}))
      << "leading zeros are no digits";
  EXPECT_EQ(floor_of_product(*parse_decimal("0.000000000000000000000000000000000001"), INT64_MAX, 2), 0);
}

TEST(Decimal, ExceedsALimitByAnyExcess) {
  EXPECT_FALSE(exceeds(*parse_decimal("1"), 1));
  EXPECT_FALSE(exceeds(*parse_decimal("0.99999999999999999"), 1));
  EXPECT_TRUE(exceeds(*parse_decimal("1.00000000000000001"), 1)) << "which is 1 in double";
  EXPECT_TRUE(exceeds(*parse_decimal("2"), 1));
  EXPECT_FALSE(exceeds(*parse_decimal("0"), 0));
}

TEST(Decimal, ReadsPlainDigitsOnly) {
  EXPECT_EQ(parse_decimal("20"), (Decimal{20, 0}));
  EXPECT_EQ(parse_decimal("0.125"), (Decimal{125, 3}));
  EXPECT_EQ(parse_decimal("007"), (Decimal{7, 0}));
  for (const char* bad : {"", ".", "1.", ".5", "-1", "+1", "1e3", "0x10", " 1", "1 ", "1,5", "1.2.3", "nan",
                          "inf", "20%", "1234567890123456789", "1.000000000000000000"}) {
    EXPECT_EQ(parse_decimal(bad), std::nullopt) << bad;
  }
}

TEST(Decimal, DropsZerosBehindThePoint) {
  EXPECT_EQ(parse_decimal("0.500"), parse_decimal("0.5"));
  EXPECT_EQ(parse_decimal("2.0"), (Decimal{2, 0}));
  EXPECT_EQ(parse_decimal("0.000"), (Decimal{0, 0}));
  EXPECT_EQ(parse_decimal("100"), (Decimal{100, 0}));
}

TEST(Decimal, WritesWhatItReads) {
  for (const char* text :
       {"0", "20", "2.5", "0.125", "0.0001", "100", "12345.6789", "0.000000000000001", "9999999999999999"}) {
    EXPECT_EQ(to_string(parse_decimal(text).value()), text);
  }
}

TEST(Decimal, HasTheNearestDoubleAsItsValue) {
  EXPECT_EQ(parse_decimal("0.1").value().value(), 0.1);
  EXPECT_EQ(parse_decimal("0.3").value().value(), 0.3);
  EXPECT_EQ(parse_decimal("2.5").value().value(), 2.5);
  EXPECT_EQ(parse_decimal("0.0001").value().value(), 1e-4);
}

}  // namespace
}  // namespace kvbound::decimal_test
