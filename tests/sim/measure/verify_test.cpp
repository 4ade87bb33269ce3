// Recorded attention outputs that agree with the recorded tensors, and ones that do not.
#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/float16.hpp>
#include <kvbound/sim/measure/verify.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::verify_test {
namespace {

constexpr int64_t kTokens = 40;  // 37 of the prompt, 3 decoded
constexpr int64_t kWindow = 5;

// Two query heads on one KV head. The recorded outputs are computed in double precision from scaled
// values, then stored by `store`.
template <class Store>
traces::Layer recording(double value_size, Dtype storage, const Store& store) {
  test::Random random(1);
  traces::Layer layer;
  layer.shape = {2, 1, 8, 4};
  layer.scale = 0.5;
  layer.prompt_tokens = kTokens - 3;
  layer.window_queries = kWindow;
  layer.keys = random.tensor(1, kTokens, 8);
  layer.values = random.tensor(1, kTokens, 8);
  for (double& value : layer.values.numbers()) value *= value_size;
  layer.queries = random.tensor(2, kWindow + 3, 8);
  layer.attention_output = Tensor(2, kWindow + 3, 8);
  layer.attention_output_storage = storage;
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t row = 0; row < kWindow + 3; ++row) {
      const int64_t visible = kTokens - 3 - kWindow + row + 1;
      const Matrix output = reference::attention(layer.queries.slice(h).middle_rows(row, 1),
                                                 layer.keys.slice(0).middle_rows(0, visible),
                                                 layer.values.slice(0).middle_rows(0, visible), layer.scale)
                                .output;
      for (int64_t c = 0; c < 8; ++c) layer.attention_output->slice(h)(row, c) = store(output(0, c));
    }
  }
  return layer;
}

double as_float16(double x) { return from_float16(to_float16(x)); }
double as_bfloat16(double x) { return from_bfloat16(to_bfloat16(x)); }
double as_float(double x) { return static_cast<float>(x); }

TEST(AttentionOutput, AgreesInEveryStorageWhateverTheSizeOfTheValues) {
  for (const double size : {1.0, 1e-4, 1e-6, 1e-30, 0.0}) {
    EXPECT_TRUE(verify_attention_output(recording(size, Dtype::f16, as_float16)).agrees()) << size;
    EXPECT_TRUE(verify_attention_output(recording(size, Dtype::bf16, as_bfloat16)).agrees()) << size;
    EXPECT_TRUE(verify_attention_output(recording(size, Dtype::f32, as_float)).agrees()) << size;
  }
}

TEST(AttentionOutput, IsHeldToABoundOfTheSizeOfSinglePrecision) {
  const OutputAgreement agreement = verify_attention_output(recording(1, Dtype::f32, as_float));
  EXPECT_GT(agreement.worst_error, 0);
  EXPECT_LT(agreement.worst_bound, 1e-4);
}

TEST(AttentionOutput, OfAnotherQueryHeadRowOrColumnIsFound) {
  traces::Layer layer = recording(1, Dtype::f32, as_float);
  layer.attention_output->slice(1)(6, 3) += 1e-3;
  const OutputAgreement agreement = verify_attention_output(layer);
  EXPECT_FALSE(agreement.agrees());
  EXPECT_EQ(agreement.query_head, 1);
  EXPECT_EQ(agreement.row, 6);
  EXPECT_EQ(agreement.column, 3);
  EXPECT_NEAR(agreement.worst_error, 1e-3, 1e-5);
}

TEST(AttentionOutput, OfTheWrongScaleIsFound) {
  traces::Layer layer = recording(1, Dtype::bf16, as_bfloat16);
  layer.scale = 0.6;
  EXPECT_FALSE(verify_attention_output(layer).agrees());
}

}  // namespace
}  // namespace kvbound::sim::verify_test
