#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include <kvbound/sim/diff/claims/input_rounding.hpp>
#include <kvbound/sim/diff/floor/random_shape.hpp>
#include <kvbound/sim/options/command_line.hpp>

#include "support/message_of.hpp"

namespace kvbound::sim::random_shape_test {
namespace {

TEST(RandomShape, ReadsWhatItPrints) {
  const RandomShape shape = parse_shape("head_dim=8:query_heads=6:kv_heads=3:tokens=100:window=4:seed=7");
  EXPECT_EQ(canonical(shape), "tokens=100:head_dim=8:query_heads=6:kv_heads=3:window=4:seed=7");
  EXPECT_EQ(canonical(parse_shape(canonical(shape))), canonical(shape));
  EXPECT_EQ(parse_shape("tokens=3").head_dim, RandomShape().head_dim);
}

TEST(RandomShape, IsToldFromAPath) {
  EXPECT_TRUE(is_shape("tokens=5"));
  EXPECT_TRUE(is_shape("seed=x:y"));
  EXPECT_FALSE(is_shape("a=5"));
  EXPECT_FALSE(is_shape("tokens.safetensors"));
  EXPECT_FALSE(is_shape("./tokens=5"));
}

TEST(RandomShape, SaysWhatIsWrong) {
  const auto message = [](const char* text) {
    return test::message_of<UsageError>([&] { parse_shape(text); });
  };
  EXPECT_EQ(message("tokens=0"),
            "shape 'tokens=0': 'tokens=0': expected tokens=N, an integer from 1 to 16777216");
  EXPECT_EQ(message("tokens=5:tokens=5"), "shape 'tokens=5:tokens=5': option 'tokens' is given twice");
  EXPECT_EQ(
      message("tokens=5:heads=2"),
      "shape 'tokens=5:heads=2': no option 'heads'; there are tokens, head_dim, query_heads, kv_heads, window, seed");
  EXPECT_EQ(
      message("tokens=5:"),
      "shape 'tokens=5:': no option ''; there are tokens, head_dim, query_heads, kv_heads, window, seed");
  EXPECT_EQ(message("seed"),
            "shape 'seed': 'seed': expected seed=N, an integer from 0 to 9223372036854775807");
  EXPECT_EQ(message("kv_heads=2:query_heads=3"),
            "shape 'kv_heads=2:query_heads=3': kv_heads=2 does not divide query_heads=3");
}

TEST(RandomShape, GivesNumbersOfVarianceOneThatTheTypeHolds) {
  const RandomShape shape = parse_shape("tokens=500:head_dim=16:query_heads=4:kv_heads=2:window=3");
  const traces::Layer layer = random_layer(shape, Dtype::bf16);
  EXPECT_EQ(layer.shape, (LayerShape{4, 2, 16, 64}));
  EXPECT_EQ(layer.prompt_tokens, 500);
  EXPECT_EQ(layer.window_queries, 3);
  EXPECT_EQ(layer.scale, 0.25);
  for (const VectorView numbers : {layer.keys.numbers(), layer.values.numbers()}) {
    double mean = 0, square = 0;
    for (const double x : numbers) {
      EXPECT_EQ(x, rounded_to(x, Dtype::bf16));
      mean += x / static_cast<double>(numbers.size());
      square += x * x / static_cast<double>(numbers.size());
    }
    EXPECT_NEAR(mean, 0, 0.03);
    EXPECT_NEAR(square, 1, 0.05);
  }
  EXPECT_NE(layer.keys.numbers()[0], layer.values.numbers()[0]);
  double row = 0;
  for (const double x : layer.output_projection.numbers()) row += x * x / 64;
  EXPECT_NEAR(row, 1, 0.1);
  RandomShape other = shape;
  other.seed = 2;
  EXPECT_NE(random_layer(other, Dtype::bf16).keys.numbers()[0], layer.keys.numbers()[0]);
  EXPECT_EQ(random_layer(parse_shape("tokens=2"), Dtype::f64).window_queries, 2);
}

}  // namespace
}  // namespace kvbound::sim::random_shape_test
