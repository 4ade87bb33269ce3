#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/numerics/instruction_set.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::instruction_set_test {
namespace {

// The sum of numbers, whose count is a multiple of kLanes, with a level's instructions.
double sum_at(InstructionSet level, const std::vector<double>& numbers) {
  double sum = 0;
  run_at(
      level, [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        typename L::Sums sums;
        for (size_t i = 0; i < numbers.size(); i += kLanes) {
          for (size_t v = 0; v < L::kVectors; ++v) {
            typename L::Reals x;
            L::load(numbers.data() + i + v * L::kWidth, x);
            sums.parts[v] += x;
          }
        }
        sum = sums.total();
      });
  return sum;
}

TEST(InstructionSet, HasAGenericLevelEverywhereAndRunsOneThatIsThere) {
  EXPECT_TRUE(is_available(InstructionSet::generic));
  EXPECT_TRUE(is_available(instruction_set()));
  for (const InstructionSet level : kInstructionSets) {
    EXPECT_TRUE(level <= instruction_set() || !is_available(level)) << name(level);
  }
}

TEST(InstructionSet, NamesItsLevels) {
  EXPECT_EQ(name(InstructionSet::generic), "generic");
  EXPECT_EQ(name(InstructionSet::avx2), "avx2");
  EXPECT_EQ(name(InstructionSet::avx512), "avx512");
}

// 1, 2, ..., 32: partial sums 1 + 17, 2 + 18, ...
TEST(InstructionSet, SumsEveryLane) {
  std::vector<double> numbers;
  for (int i = 1; i <= 32; ++i) numbers.push_back(i);
  for (const InstructionSet level : kInstructionSets) {
    if (!is_available(level)) continue;
    EXPECT_EQ(sum_at(level, numbers), 32 * 33 / 2) << name(level);
  }
}

TEST(InstructionSet, SumsToTheSameBitsAtEveryLevel) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    test::Random random(seed);
    std::vector<double> numbers;
    for (size_t i = 0; i < kLanes * (seed + 1); ++i) numbers.push_back(random.normal());
    const double generic = sum_at(InstructionSet::generic, numbers);
    for (const InstructionSet level : kInstructionSets) {
      if (!is_available(level)) continue;
      EXPECT_EQ(sum_at(level, numbers), generic) << name(level);
    }
  }
}

}  // namespace
}  // namespace kvbound::reference::instruction_set_test
