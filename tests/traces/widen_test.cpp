// Stored numbers become the doubles that they stand for, and none that is not finite is missed.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/float16.hpp>
#include <kvbound/traces/widen.hpp>

namespace kvbound::traces::widen_test {
namespace {

template <class Stored>
std::pair<std::vector<double>, bool> widened(Dtype dtype, const std::vector<Stored>& stored,
                                             size_t misaligned = 0) {
  std::vector<char> bytes(misaligned + stored.size() * sizeof(Stored));
  if (!stored.empty()) std::memcpy(bytes.data() + misaligned, stored.data(), stored.size() * sizeof(Stored));
  std::vector<double> numbers(stored.size());
  const bool finite = widen(dtype, std::span(bytes).subspan(misaligned), numbers);
  return {numbers, finite};
}

TEST(Widen, GivesAllNumbersOfSixteenBitsExactly) {
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    std::vector<uint16_t> all(1 << 16);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    const auto [numbers, finite] = widened(dtype, all);
    EXPECT_FALSE(finite);
    for (size_t i = 0; i < all.size(); ++i) {
      const double expected = dtype == Dtype::f16 ? from_float16(all[i]) : from_bfloat16(all[i]);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(numbers[i])) << i;
      } else {
        EXPECT_EQ(std::bit_cast<uint64_t>(numbers[i]), std::bit_cast<uint64_t>(expected)) << i;
      }
    }
  }
}

// Every number by itself, at the ends of vectors and blocks, and at odd addresses.
TEST(Widen, FindsEveryNumberThatIsNotFinite) {
  const auto check = [](Dtype dtype, auto one, auto infinite, auto minus_infinite, auto nan) {
    using Stored = decltype(one);
    for (const size_t count : {1, 2, 3, 7, 8, 9, 31, 1023, 1024, 1025, 3000}) {
      std::vector<Stored> stored(count, one);
      const auto [numbers, finite] = widened(dtype, stored, 1);
      EXPECT_TRUE(finite);
      EXPECT_EQ(numbers, std::vector<double>(count, 1.5));
      for (const size_t place : {size_t{0}, count / 2, count - 1}) {
        for (const Stored bad : {infinite, nan, minus_infinite}) {
          stored[place] = bad;
          EXPECT_FALSE(widened(dtype, stored, 1).second) << name(dtype) << " " << place << " of " << count;
          stored[place] = one;
        }
      }
    }
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  check(Dtype::f64, 1.5, kInfinity, -kInfinity, std::nan(""));
  check(Dtype::f32, 1.5F, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::nanf(""));
  check(Dtype::f16, to_float16(1.5), to_float16(kInfinity), to_float16(-kInfinity), to_float16(std::nan("")));
  check(Dtype::bf16, to_bfloat16(1.5), to_bfloat16(kInfinity), to_bfloat16(-kInfinity),
        to_bfloat16(std::nan("")));
}

TEST(Widen, KeepsTheLargestAndSmallestNumbers) {
  EXPECT_EQ(widened(Dtype::f32, std::vector{std::numeric_limits<float>::denorm_min(),
                                            -std::numeric_limits<float>::max()}),
            std::pair(std::vector{0x1p-149, -0x1.fffffep127}, true));
  EXPECT_EQ(widened(Dtype::f64, std::vector{5e-324, -1.7976931348623157e308}),
            std::pair(std::vector{5e-324, -1.7976931348623157e308}, true));
  EXPECT_TRUE(widened(Dtype::f16, std::vector<uint16_t>{}).second);
}

}  // namespace
}  // namespace kvbound::traces::widen_test
