#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/sim/options/number.hpp>

namespace kvbound::sim::number_test {
namespace {

TEST(Integers, AreReadWholeOrNotAtAll) {
  EXPECT_EQ(parse_integer("0"), 0);
  EXPECT_EQ(parse_integer("-3"), -3);
  EXPECT_EQ(parse_integer("0012"), 12);
  EXPECT_EQ(parse_integer("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(parse_integer("-9223372036854775808"), std::numeric_limits<int64_t>::min());
  for (const char* text : {"", "-", "+1", " 1", "1 ", "1.0", "1e3", "0x10", "1,000", "9223372036854775808",
                           "abc", "--1", "-9223372036854775809", "4294967296x"}) {
    EXPECT_EQ(parse_integer(text), std::nullopt) << text;
  }
}

TEST(Reals, AreReadWholeAndFiniteOrNotAtAll) {
  EXPECT_EQ(parse_real("0.5"), 0.5);
  EXPECT_EQ(parse_real("1e-4"), 1e-4);
  EXPECT_EQ(parse_real("-2"), -2);
  EXPECT_EQ(parse_real("5e-324"), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(parse_real("1.7976931348623157e308"), std::numeric_limits<double>::max());
  for (const char* text : {"", "nan", "NaN", "inf", "-inf", "infinity", "1e999", "+1", " 1", "1 ", "1e", "1x",
                           "0x1p3", "1,5", "e5", "-"}) {
    EXPECT_EQ(parse_real(text), std::nullopt) << text;
  }
}

TEST(ShortestText, IsWhatAPersonWouldWrite) {
  EXPECT_EQ(shortest(0), "0");
  EXPECT_EQ(shortest(0.5), "0.5");
  EXPECT_EQ(shortest(12), "12");
  EXPECT_EQ(shortest(100), "100");
  EXPECT_EQ(shortest(1e-4), "1e-4");
  EXPECT_EQ(shortest(-0.25), "-0.25");
  EXPECT_EQ(shortest(1e22), "1e22");
  EXPECT_EQ(shortest(1.5e-300), "1.5e-300");
  EXPECT_EQ(shortest(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(shortest(std::numeric_limits<double>::max()), "1.7976931348623157e308");
  EXPECT_EQ(shortest(std::numeric_limits<double>::denorm_min()), "5e-324");
}

RC_GTEST_PROP(ShortestText, ReadsBackAsTheSameNumberAndIsNoLongerThanNeeded, ()) {
  const double number =
      std::bit_cast<double>(*rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<uint64_t>()));
  RC_PRE(std::isfinite(number));
  const std::string text = shortest(number);
  RC_LOG() << text;
  const auto read = parse_real(text);
  RC_ASSERT(read.has_value());
  RC_ASSERT(std::bit_cast<uint64_t>(*read) == std::bit_cast<uint64_t>(number));
  RC_ASSERT(text.size() <= 24u);  // sign, 17 digits, point, e-308
}

}  // namespace
}  // namespace kvbound::sim::number_test
