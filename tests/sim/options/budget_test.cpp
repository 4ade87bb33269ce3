#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/budget.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::budget_test {
namespace {

using test::message_of;

int64_t entries(const std::string& text, int64_t prompt_tokens) {
  return parse_budget(text).entries(prompt_tokens);
}

TEST(Budget, InPercentIsFlooredExactly) {
  EXPECT_EQ(entries("20%", 1000), 200);
  EXPECT_EQ(entries("2.5%", 1000), 25);
  EXPECT_EQ(entries("2.5%", 39), 0);
  EXPECT_EQ(entries("2.5%", 40), 1);
  EXPECT_EQ(entries("29%", 100), 29) << "29 / 100.0 * 100 is less than 29 in floating point";
  EXPECT_LT(std::floor(29 / 100.0 * 100), 29) << "so this test can tell";
  EXPECT_EQ(entries("0.1%", 131072), 131);
  EXPECT_EQ(entries("100%", 1984), 1984);
  EXPECT_EQ(entries("99.99999999999999%", 1984), 1983);
  EXPECT_EQ(entries("0%", 1984), 0);
  EXPECT_EQ(entries("50%", 2147483647), 1073741823);
}

TEST(Budget, InPercentAgreesWithIntegersForEveryPromptUpTo100000) {
  struct Share {
    const char* text;
    int64_t numerator;
    int64_t denominator;
  };
  constexpr std::array kShares{
      Share{"0.01%", 1, 10000},     Share{"0.1%", 1, 1000}, Share{"0.5%", 1, 200},
      Share{"1%", 1, 100},          Share{"2.5%", 1, 40},   Share{"5%", 1, 20},
      Share{"7%", 7, 100},          Share{"10%", 1, 10},    Share{"12.5%", 1, 8},
      Share{"14%", 7, 50},          Share{"20%", 1, 5},     Share{"28%", 7, 25},
      Share{"33.3%", 333, 1000},    Share{"55%", 11, 20},   Share{"57%", 57, 100},
      Share{"66.67%", 6667, 10000}, Share{"90%", 9, 10},    Share{"99.9%", 999, 1000}};
  int64_t disagreements_of_floating_point = 0;
  for (const Share& share : kShares) {
    const Budget budget = parse_budget(share.text);
    const double fraction = budget.amount.value() / 100;
    for (int64_t n = 1; n <= 100000; ++n) {
      const int64_t expected = share.numerator * n / share.denominator;
      ASSERT_EQ(budget.entries(n), expected) << share.text << " of " << n;
      disagreements_of_floating_point += static_cast<int64_t>(fraction * static_cast<double>(n)) != expected;
    }
  }
  EXPECT_GT(disagreements_of_floating_point, 0) << "these shares would not catch floating point";
}

TEST(Budget, AsACountDoesNotDependOnThePrompt) {
  for (const int64_t tokens : {1, 100, 131072}) {
    EXPECT_EQ(entries("256", tokens), 256);
    EXPECT_EQ(entries("0", tokens), 0);
    EXPECT_EQ(entries("9999999999999999", tokens), 9999999999999999);
  }
}

TEST(Budget, ReadsBackFromItsText) {
  for (const char* text : {"256", "1", "0", "20%", "2.5%", "0.05%", "100%", "33.3333%"}) {
    EXPECT_EQ(to_string(parse_budget(text)), text);
  }
  EXPECT_EQ(to_string(parse_budget("020.50%")), "20.5%");
  EXPECT_EQ(parse_budget("20.0%"), parse_budget("20%"));
  EXPECT_FALSE(parse_budget("20%") == parse_budget("20"));
}

TEST(Budget, ThatIsNoneIsRefusedAndSaysWhatIsExpected) {
  for (const std::string text : {"",
                                 "%",
                                 "-1",
                                 "-5%",
                                 "+1",
                                 " 1",
                                 "1 ",
                                 "1.5",
                                 "1e3",
                                 "0x10",
                                 "nan",
                                 "inf",
                                 "nan%",
                                 "1%%",
                                 "%1",
                                 "1,5%",
                                 ".5%",
                                 "5.%",
                                 "1.2.3%",
                                 "100.1%",
                                 "100.0000000000001%",
                                 "1000%",
                                 "1234567890123456789",
                                 "100.000000000000001%",
                                 "99999999999999999999"}) {
    EXPECT_EQ(
        message_of<InvalidPolicy>([&] { parse_budget(text); }),
        "budget '" + text +
            "': expected a count of entries such as 256, or a share of the prompt from 0% to 100% such as "
            "20% or 2.5%, or given");
  }
}

TEST(Budget, OfKeptSetsIsNoNumber) {
  const Budget budget = parse_budget("given");
  EXPECT_TRUE(budget.given);
  EXPECT_EQ(to_string(budget), "given");
  EXPECT_NE(budget, parse_budget("0"));
  EXPECT_EQ(message_of<InvalidPolicy>([&] { budget.entries(100); }),
            "the budget `given` is for the host given, whose file has kept sets");
}

}  // namespace
}  // namespace kvbound::sim::budget_test
