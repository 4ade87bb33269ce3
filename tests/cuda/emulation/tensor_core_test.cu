// The emulated tensor core truncates addends as coarsely as PTX permits, and loses no more
// than error_bounds.md says.
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include <kvbound/cuda/emulation/tensor_core.hpp>

namespace kvbound::cuda::emulation {
namespace {

constexpr float kUnit = 0x1p-23F;  // the last of the 24 bits of 1.0F

// One sum; the columns beside it have others, which must not matter.
float add_aligned(const float (&products)[kAligned], float total) {
  Columns totals, columns[kAligned];
  for (int c = 0; c < kColumns; ++c) {
    totals[c] = c == 3 ? total : std::ldexp(1.0F, 20 * c);
    for (int k = 0; k < kAligned; ++k) columns[k][c] = c == 3 ? products[k] : static_cast<float>(k * c);
  }
  emulation::add_aligned(columns, totals);
  return totals[3];
}

TEST(TensorCore, CutsAddendsToTheLastBitOfTheLargest) {
  const float small[kAligned] = {kUnit / 2, kUnit / 2, kUnit / 2, kUnit / 2,
                                 kUnit / 2, kUnit / 2, kUnit / 2, 0};
  EXPECT_EQ(add_aligned(small, 1), 1);
  EXPECT_EQ(add_aligned(small, -1), -1);
  EXPECT_EQ(add_aligned(small, 0.25F), 0.25F + 3.5F * kUnit);
}

TEST(TensorCore, CutsTheSumOnceMore) {
  const float products[kAligned] = {1 + kUnit, 1 + kUnit, 0, 0, 0, 0, 0, 0};  // exact sum below: 3 + 3 units
  EXPECT_EQ(add_aligned(products, 1 + kUnit), 3 + 2 * kUnit);
  const float negative[kAligned] = {-1 - kUnit, -1 - kUnit, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(add_aligned(negative, -1 - kUnit), -3 - 2 * kUnit);
}

TEST(TensorCore, IsExactWhereNothingIsCut) {
  const float products[kAligned] = {1, -2, 3, -4, 5, -6, 7, 0.5F};
  EXPECT_EQ(add_aligned(products, 100), 104.5F);
  EXPECT_EQ(add_aligned({}, 0), 0);
  const float large[kAligned] = {0x1p127F, -0x1p127F, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(add_aligned(large, 0x1p104F), 0x1p104F);
  const float tiny[kAligned] = {0x1p-126F, 0x1p-126F, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(add_aligned(tiny, 0), 0x1p-125F);
}

TEST(TensorCore, PassesInfinityAndNanOn) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float infinite[kAligned] = {1, 2, kInfinity, 0, 0, 0, 0, 0};
  EXPECT_EQ(add_aligned(infinite, -5), kInfinity);
  EXPECT_TRUE(std::isnan(add_aligned(infinite, -kInfinity)));
  EXPECT_TRUE(std::isnan(add_aligned({}, std::numeric_limits<float>::quiet_NaN())));
}

TEST(TensorCore, ColumnsBesideInfinityAreAsWithoutIt) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Columns products[kAligned] = {}, totals = {1, 1, 1, 1, 1, 1, 1, 1};
  products[2][5] = -kInfinity;
  for (Columns& row : products) row[4] = kUnit / 2;
  products[1][6] = products[2][6] = 0x1p127F;
  products[3][6] = -0x1p127F;
  emulation::add_aligned(products, totals);
  for (const int c : {0, 1, 2, 3, 4, 7}) EXPECT_EQ(totals[c], 1) << c;
  EXPECT_EQ(totals[5], -kInfinity);
  EXPECT_EQ(totals[6], 0x1p127F);
}

TEST(TensorCore, LosesNoMoreThan17CutsIn16Products) {
  std::mt19937_64 random(1);
  double worst = 0;
  for (int repeat = 0; repeat < 20000; ++repeat) {
    const int spread = repeat % 30;
    double exact = 0, size = 0;
    float sum = 0;
    for (int block = 0; block < 2; ++block) {
      float products[kAligned];
      for (float& product : products) {
        const auto significand = static_cast<float>(random() >> 40);  // 24 bits
        product = std::ldexp(random() % 4 == 0 ? -significand : significand,
                             -static_cast<int>(random() % static_cast<uint64_t>(spread + 1)));
        exact += product;
        size += std::abs(static_cast<double>(product));
      }
      sum = add_aligned(products, sum);
    }
    worst = std::max(worst, std::abs(sum - exact) / (size * 0x1p-23));
  }
  EXPECT_LE(worst, 17);
  EXPECT_GT(worst, 1) << "nothing was cut";
}

}  // namespace
}  // namespace kvbound::cuda::emulation
