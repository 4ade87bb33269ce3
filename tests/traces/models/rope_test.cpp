// RoPE on hand-computed angles, and what every rotation keeps.
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/models/rope.hpp>

namespace kvbound::traces::rope_test {
namespace {

std::vector<float> rotated(const Rope& rope, std::vector<float> numbers, int64_t position) {
  std::vector<float> cosines(numbers.size() / 2), sines(numbers.size() / 2);
  rope.angles(position, cosines, sines);
  rope.rotate(numbers, cosines, sines);
  return numbers;
}

TEST(Rope, RotatesHalvesOrNeighbours) {
  RopeConfig config;
  config.base = 100;  // frequencies 1 and 1/10
  const Rope halves(config, 4, {});
  config.pairing = RopePairing::neighbours;
  const Rope neighbours(config, 4, {});
  const std::vector<float> one = rotated(halves, {1, 2, 3, 4}, 2),
                           other = rotated(neighbours, {1, 3, 2, 4}, 2);
  const double fast = 2, slow = 0.2;
  const std::array<double, 4> expected{
      std::cos(fast) - 3 * std::sin(fast), 2 * std::cos(slow) - 4 * std::sin(slow),
      std::sin(fast) + 3 * std::cos(fast), 2 * std::sin(slow) + 4 * std::cos(slow)};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(one[i], expected[i], 1e-6);
  EXPECT_EQ(other, (std::vector<float>{one[0], one[2], one[1], one[3]}));
}

TEST(Rope, PositionZeroChangesNothing) {
  EXPECT_EQ(rotated(Rope({}, 6, {}), {1, -2, 3, 4, 5, 6}, 0), (std::vector<float>{1, -2, 3, 4, 5, 6}));
}

TEST(Rope, LinearScalingDividesPositions) {
  RopeConfig config;
  config.linear_factor = 4;
  const Rope scaled(config, 8, {}), plain({}, 8, {});
  const std::vector<float> numbers{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> one = rotated(scaled, numbers, 12), other = rotated(plain, numbers, 3);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(one[i], other[i], 1e-5);
}

TEST(Rope, Llama3KeepsFastFrequenciesAndDividesSlowOnes) {
  RopeConfig config;
  config.base = 500000;
  const Rope plain(config, 128, {});
  config.llama3 = Llama3Scaling{8, 1, 4, 8192};
  const Rope scaled(config, 128, {});
  bool between = false;
  for (size_t i = 0; i < 64; ++i) {
    const double frequency = plain.frequencies()[i], turns = 8192 * frequency / (2 * std::numbers::pi);
    const double ratio = frequency / scaled.frequencies()[i];
    if (turns > 4) {
      EXPECT_EQ(ratio, 1);
    } else if (turns < 1) {
      EXPECT_NEAR(ratio, 8, 1e-12);
    } else {
      between = true;
      EXPECT_NEAR(1 / ratio, (1 - (turns - 1) / 3) / 8 + (turns - 1) / 3, 1e-12);
    }
  }
  EXPECT_TRUE(between);
}

TEST(Rope, DivisorsDivideFrequencies) {
  const std::vector<float> divisors{1, 2, 4, 8};
  const Rope plain({}, 8, {}), divided({}, 8, divisors);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(divided.frequencies()[i], plain.frequencies()[i] / divisors[i]);
  EXPECT_THROW(Rope({}, 10, divisors), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::traces::rope_test
