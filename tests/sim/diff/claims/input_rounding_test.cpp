#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/core/float16.hpp>
#include <kvbound/sim/diff/claims/input_rounding.hpp>

#include "support/trace_layer.hpp"

namespace kvbound::sim::input_rounding_test {
namespace {

// A layer whose numbers are all 1, which every type holds exactly.
traces::Layer layer_of_ones() {
  traces::Layer layer = test::weighted_layer(3, {{1, 1, 1, 1}});
  for (double& key : layer.keys.numbers()) key = 1;
  return layer;
}

// Numbers that F16, BF16 and F32, respectively, hold exactly, but the next shorter type does not.
constexpr double kHalf = 1 + 0x1p-10, kBrain = 1 + 0x1p-7, kSingle = 1 + 0x1p-23;

InputRounding with_key(double key, Dtype storage) {
  traces::Layer layer = layer_of_ones();
  layer.keys.slice(0)(3, 0) = key;
  return input_rounding(layer, storage);
}

TEST(InputRounding, IsNoneOfNumbersThatTheTypeHolds) {
  for (const auto& [key, storage] : {std::pair(kHalf, Dtype::f16), std::pair(kBrain, Dtype::bf16),
                                     std::pair(kSingle, Dtype::f32), std::pair(1.0 / 3, Dtype::f64)}) {
    EXPECT_EQ(with_key(key, storage).relative, 0);
    EXPECT_EQ(with_key(key, storage).floor, 0);
  }
}

TEST(InputRounding, IsHalfAUnitInTheLastPlaceWhereOneNumberIsNotHeld) {
  EXPECT_EQ(with_key(1 + 0x1p-11, Dtype::f16).relative, 0x1p-11);
  EXPECT_EQ(with_key(1 + 0x1p-8, Dtype::bf16).relative, 0x1p-8);
  EXPECT_EQ(with_key(1 + 0x1p-24, Dtype::f32).relative, 0x1p-24);
  EXPECT_EQ(with_key(0x1p-26, Dtype::f16).floor, 0x1p-25);
  EXPECT_EQ(with_key(1 + 0x1p-8, Dtype::bf16).floor, 0x1p-134);
  EXPECT_EQ(with_key(0x1p-151, Dtype::f32).floor, 0x1p-150);
}

TEST(InputRounding, LooksAtEveryTensor) {
  const auto rounded = [](auto member) {
    traces::Layer layer = layer_of_ones();
    (layer.*member).numbers().back() = 1.0 / 3;
    return input_rounding(layer, Dtype::f32).relative > 0;
  };
  EXPECT_TRUE(rounded(&traces::Layer::keys));
  EXPECT_TRUE(rounded(&traces::Layer::values));
  EXPECT_TRUE(rounded(&traces::Layer::queries));
  traces::Layer layer = layer_of_ones();
  EXPECT_EQ(input_rounding(layer, Dtype::f32).relative, 0);
  layer.output_projection(0, 0) = 1.0 / 3;
  EXPECT_GT(input_rounding(layer, Dtype::f32).relative, 0);
}

TEST(InputRounding, HoldsWhatStoringRandomNumbersCosts) {
  test::Random random(5);
  for (int i = 0; i < 2000; ++i) {
    const double number = std::ldexp(random.normal(), static_cast<int>(random.index(40)) - 30);
    const auto within = [&](double stored, Dtype storage) {
      const InputRounding rounding = with_key(number, storage);
      return std::abs(stored - number) <= rounding.relative * std::abs(number) + rounding.floor;
    };
    EXPECT_TRUE(within(from_float16(to_float16(number)), Dtype::f16)) << number;
    EXPECT_TRUE(within(from_bfloat16(to_bfloat16(number)), Dtype::bf16)) << number;
    EXPECT_TRUE(within(static_cast<float>(number), Dtype::f32)) << number;
  }
}

TEST(InputRounding, ComesBeforeTheArithmeticsOwn) {
  traces::Layer layer = layer_of_ones();
  layer.keys.slice(0)(3, 0) = 1.0 / 3;
  TestedImplementation implementation{{}, 3, 0, reference::double_precision(), Dtype::f32};
  EXPECT_EQ(with_input_rounding(implementation, layer).arithmetic.attention.input, 0x1p-24);
  EXPECT_EQ(with_input_rounding(implementation, layer).arithmetic.attention.input_floor, 0x1p-150);
  implementation.arithmetic.attention.input = 0x1p-10;
  implementation.arithmetic.attention.input_floor = 0x1p-126;
  EXPECT_EQ(with_input_rounding(implementation, layer).arithmetic.attention.input,
            0x1p-10 + 0x1p-24 + 0x1p-34);
  EXPECT_EQ(with_input_rounding(implementation, layer).arithmetic.attention.input_floor,
            0x1p-126 + 0x1p-150 * (1 + 0x1p-10));
}

}  // namespace
}  // namespace kvbound::sim::input_rounding_test
