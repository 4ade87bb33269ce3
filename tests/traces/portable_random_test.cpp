#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/traces/portable_random.hpp>

namespace kvbound::traces::portable_random_test {
namespace {

TEST(PortableRandom, NaturalLogIsWithinThreeUnitsInTheLastPlace) {
  const Stream random(3);
  double worst = 0;
  for (uint64_t i = 0; i < 200000; ++i) {
    const double number =
        i % 2 ? random.uniform(i) : std::ldexp(random.uniform(i), static_cast<int>(i % 61) - 30);
    const long double exact = std::log(static_cast<long double>(number));
    const double rounded = std::abs(static_cast<double>(exact));
    const double unit = std::nextafter(rounded, std::numeric_limits<double>::infinity()) - rounded;
    const double error = static_cast<double>(std::abs(natural_log(number) - exact)) / unit;
    worst = std::max(worst, error);
  }
  EXPECT_LE(worst, 3);
  EXPECT_EQ(natural_log(1), 0);
}

TEST(PortableRandom, BitsAreThoseOfSplitMix64) {
  EXPECT_EQ(Stream(0).bits(0), 0xe220a8397b1dcdafu);  // SplitMix64's first number from state 0, as published
  EXPECT_EQ(Stream(1).bits(0), 13830413928045401970u);
  EXPECT_EQ(Stream(1).child(2).bits(3), 13768872034826471435u);
}

TEST(PortableRandom, NormalHasTheMomentsOfFourUniforms) {
  const Stream random(11);
  constexpr uint64_t kCount = 1000000;
  double mean = 0, square = 0, fourth = 0, largest = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double x = random.normal(i);
    mean += x / kCount;
    square += x * x / kCount;
    fourth += x * x * x * x / kCount;
    largest = std::max(largest, std::abs(x));
  }
  // Six standard deviations of each estimate.
  EXPECT_NEAR(mean, 0, 6e-3);
  EXPECT_NEAR(square, 1, 8e-3);
  EXPECT_NEAR(fourth, 2.7, 5e-2);
  EXPECT_GT(largest, 3);
  EXPECT_LT(largest, 3.4642);
}

TEST(PortableRandom, StreamsOfDifferentSeedsAndNamesAreUncorrelated) {
  const Stream base(5);
  const Stream others[] = {Stream(6), base.child(0), base.child(1), base.child(0).child(1)};
  constexpr uint64_t kCount = 100000;
  for (const Stream& other : others) {
    for (uint64_t shift = 0; shift < 3; ++shift) {
      double product = 0;
      for (uint64_t i = 0; i < kCount; ++i) product += base.normal(i) * other.normal(i + shift) / kCount;
      EXPECT_NEAR(product, 0, 0.02);  // six standard deviations
    }
  }
}

TEST(PortableRandom, PermutationTakesEveryPlaceOnce) {
  for (const int64_t count : {1, 2, 3, 4, 5, 31, 32, 33, 1000, 4096, 4097, 100000}) {
    const Permutation permutation(Stream(9), count);
    std::vector<int64_t> places(count);
    for (int64_t i = 0; i < count; ++i) places[i] = permutation(i);
    std::ranges::sort(places);
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(places[i], i) << "of " << count;
  }
}

TEST(PortableRandom, PermutationForgetsWhereItsElementsWere) {
  constexpr int64_t kCount = 5000;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Permutation permutation(Stream(seed), kCount);
    const auto centred = [](int64_t place) { return (static_cast<double>(place) + 0.5) / kCount - 0.5; };
    double with_index = 0, with_next = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      with_index += 12 * centred(i) * centred(permutation(i)) / kCount;
      with_next += 12 * centred(permutation(i)) * centred(permutation((i + 1) % kCount)) / kCount;
    }
    EXPECT_NEAR(with_index, 0, 6 / std::sqrt(kCount));  // six standard deviations
    EXPECT_NEAR(with_next, 0, 6 / std::sqrt(kCount));
  }
}

}  // namespace
}  // namespace kvbound::traces::portable_random_test
