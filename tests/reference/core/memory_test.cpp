#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/memory.hpp>

namespace kvbound::memory_test {
namespace {

using Numbers = std::vector<double, detail::NumberAllocator<double>>;

constexpr size_t kLarge = (size_t{8} << 20) / sizeof(double);
constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

uintptr_t place(const Numbers& numbers) { return reinterpret_cast<uintptr_t>(numbers.data()); }

TEST(NumberAllocator, AlignsLargeArraysToHugePages) {
  for (const size_t count : {kLarge, kLarge + 1, 3 * kLarge}) {
    const Numbers one(count), other(count);
    EXPECT_EQ(place(one) % kHugePage, 0);
    EXPECT_EQ(place(other) % kHugePage, 0);
  }
}

TEST(NumberAllocator, KeepsNumbersWhereAnArrayBecomesLarge) {
  Numbers numbers;
  for (size_t i = 0; i <= kLarge; ++i) numbers.push_back(static_cast<double>(i));
  std::vector<double> expected(kLarge + 1);
  std::iota(expected.begin(), expected.end(), 0.0);
  EXPECT_TRUE(std::ranges::equal(numbers, expected));
  numbers.resize(10);
  numbers.shrink_to_fit();
  EXPECT_EQ(numbers.back(), 9);
}

TEST(NumberAllocator, GivesNumbersTheValueThatIsAskedFor) {
  for (const size_t count : {size_t{100}, kLarge}) {
    const Numbers numbers(count, 2.5);
    EXPECT_TRUE(std::ranges::all_of(numbers, [](double number) { return number == 2.5; }));
  }
}

}  // namespace
}  // namespace kvbound::memory_test
