// Rows of rounded numbers against the numbers rounded one by one.
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/float16.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/numerics/rounding.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::rounding_test {
namespace {

struct Format {
  uint16_t infinity;
  uint16_t (*round)(double);
  double (*widen)(uint16_t);
  void (*round_rows)(MatrixView, uint16_t*, int64_t, InstructionSet);
};

const Format kFloat16{0x7c00, to_float16, from_float16, round_to_float16};
const Format kBfloat16{0x7f80, to_bfloat16, from_bfloat16, round_to_bfloat16};

class RowOfSixteenBits : public testing::TestWithParam<Format> {
 protected:
  // The first of the numbers that a level rounds otherwise; empty if there is none.
  static std::string difference(const std::vector<double>& numbers, InstructionSet level) {
    std::vector<uint16_t> rounded(numbers.size() + 1, 0x1234);
    const auto columns = std::ssize(numbers);
    GetParam().round_rows({numbers.data(), 1, columns}, rounded.data(), columns, level);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (rounded[i] == GetParam().round(numbers[i])) continue;
      return testing::PrintToString(numbers[i]) + " at " + std::to_string(i) + " by " +
             std::string(name(level));
    }
    return rounded.back() == 0x1234 ? "" : "a number behind the last one, by " + std::string(name(level));
  }
  static void expect_as_one_by_one(const std::vector<double>& numbers) {
    for (const InstructionSet level : kInstructionSets) {
      if (is_available(level)) {
        ASSERT_EQ(difference(numbers, level), "");
      }
    }
  }
};

// Every value of the format and every point where rounding goes over to the next value, with their neighbours
// among the doubles, by their sign and in order: blocks of numbers that are all normal, and others.
TEST_P(RowOfSixteenBits, IsRoundedAsItsNumbers) {
  std::vector<double> numbers;
  for (uint32_t bits = 0; bits <= GetParam().infinity; ++bits) {
    const double value = GetParam().widen(static_cast<uint16_t>(bits));
    const double next = GetParam().widen(static_cast<uint16_t>(bits + 1));
    for (const double centre : {value, value + (next - value) / 2}) {
      if (!std::isfinite(centre)) continue;
      for (const double number :
           {std::nextafter(centre, -kInfinity), centre, std::nextafter(centre, kInfinity)}) {
        numbers.insert(numbers.end(), {number, -number});
      }
    }
  }
  expect_as_one_by_one(numbers);
}

// A number without a normal value at every place of a block, and in what is left behind the last block.
TEST_P(RowOfSixteenBits, IsRoundedAsItsNumbersAroundUnusualOnes) {
  test::Random random(1);
  std::vector<double> numbers;
  for (int i = 0; i < 277; ++i) numbers.push_back(random.normal());
  const double largest = GetParam().widen(static_cast<uint16_t>(GetParam().infinity - 1));
  for (const double unusual :
       {0.0, -0.0, 1e-300, std::numeric_limits<double>::denorm_min(), 1e-6, 1e-39, largest, largest * 1.001,
        largest * 1.999, largest * 2.001, largest * 5, std::numeric_limits<double>::max(), kInfinity,
        -kInfinity, std::nan(""), -std::nan(""), std::bit_cast<double>(~uint64_t{0}),
        std::bit_cast<double>(~uint64_t{0} >> 1), std::bit_cast<double>(uint64_t{0x7ff0'0000'0000'0001})}) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double usual = std::exchange(numbers[i], unusual);
      ASSERT_NO_FATAL_FAILURE(expect_as_one_by_one(numbers)) << unusual;
      numbers[i] = usual;
    }
  }
}

TEST_P(RowOfSixteenBits, OfAnyLengthIsRounded) {
  test::Random random(2);
  std::vector<double> numbers;
  for (int i = 0; i < 300; ++i) {
    ASSERT_NO_FATAL_FAILURE(expect_as_one_by_one(numbers)) << i;
    numbers.push_back(random.normal());
  }
}

TEST_P(RowOfSixteenBits, IsOneOfAMatrixWithStrides) {
  test::Random random(3);
  std::vector<double> numbers;
  for (int i = 0; i < 5 * 100; ++i) numbers.push_back(random.normal());
  const MatrixView matrix(numbers.data() + 7, 4, 81, 100);
  for (const InstructionSet level : kInstructionSets) {
    if (!is_available(level)) continue;
    std::vector<uint16_t> rounded(4 * 88, 0x1234);
    GetParam().round_rows(matrix, rounded.data(), 88, level);
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t c = 0; c < 88; ++c) {
        ASSERT_EQ(rounded[r * 88 + c], c < 81 ? GetParam().round(matrix(r, c)) : 0x1234) << r << ", " << c;
      }
    }
  }
}

TEST(Widen, KeepsNumbersAndTellsOfThoseThatAreNotFinite) {
  test::Random random(4);
  for (const size_t size : {0, 1, 7, 64, 133}) {
    std::vector<float> numbers;
    for (size_t i = 0; i < size; ++i) numbers.push_back(static_cast<float>(random.normal()));
    if (size > 2) numbers[1] = std::numeric_limits<float>::max(), numbers[2] = -0.0F;
    std::vector<double> widened(size + 1, 7);
    EXPECT_TRUE(widen(numbers, widened.data()));
    EXPECT_TRUE(std::equal(numbers.begin(), numbers.end(), widened.begin()));
    EXPECT_EQ(widened.back(), 7);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
      for (size_t i = 0; i < size; ++i) {
        const float usual = std::exchange(numbers[i], bad);
        EXPECT_FALSE(widen(numbers, widened.data())) << bad << " at " << i;
        numbers[i] = usual;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Float16, RowOfSixteenBits, testing::Values(kFloat16));
INSTANTIATE_TEST_SUITE_P(Bfloat16, RowOfSixteenBits, testing::Values(kBfloat16));

}  // namespace
}  // namespace kvbound::reference::rounding_test
