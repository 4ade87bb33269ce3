// What keys of a GGUF file mean, and those that are refused.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/models/gguf_config.hpp>

#include "support/gguf_bytes.hpp"

namespace kvbound::traces::gguf_config_test {
namespace {

using test::bytes_of;
using test::GgufParts;
using testing::HasSubstr;

constexpr uint32_t kText = 8, kTruth = 7, kReal = 6, kCount = 4, kArray = 9;

std::string array_of(const std::vector<uint32_t>& numbers) {
  std::string bytes = bytes_of(kCount) + bytes_of(uint64_t{numbers.size()});
  for (const uint32_t number : numbers) bytes += bytes_of(number);
  return bytes;
}

class GgufConfigTest : public testing::Test {
 protected:
  GgufConfigTest() {
    parts_.set("general.architecture", std::string("llama"));
    for (const auto& [key, value] :
         std::vector<std::pair<std::string, uint32_t>>{{"block_count", 2},
                                                       {"embedding_length", 64},
                                                       {"feed_forward_length", 24},
                                                       {"attention.head_count", 4}})
      parts_.set("llama." + key, value);
    parts_.set("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    parts_.tensors.push_back({"token_embd.weight", {64, 3}, 0, std::string(4 * 64 * 3, 0)});
  }

  // Sets or replaces a key of the architecture.
  void set(const std::string& name, uint32_t type, const std::string& value) {
    std::erase_if(parts_.metadata, [&](const auto& entry) { return entry.key == "llama." + name; });
    parts_.metadata.push_back({"llama." + name, type, value});
  }
  ModelConfig read() const { return read_gguf_config(GgufSet(folder_.write("model.gguf", parts_.bytes()))); }
  // What is said of the file with this key.
  std::string refusal_of(const std::string& name, uint32_t type, const std::string& value) {
    const std::vector<GgufParts::Entry> before = parts_.metadata;
    set(name, type, value);
    const std::string told = test::message_of<TraceError>([&] { read(); });
    parts_.metadata = before;
    return told;
  }

  test::TemporaryFolder folder_;
  GgufParts parts_;
};

TEST_F(GgufConfigTest, HasTheFormatsDefaults) {
  const ModelConfig config = read();
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope.base, 10000);
  EXPECT_EQ(config.rope.linear_factor, 1);
  EXPECT_TRUE(config.tied_output);
  EXPECT_EQ(config.name, "llama");
}

TEST_F(GgufConfigTest, ScalesRopeLinearlyUnlessItSaysOtherwise) {
  for (const auto& [name, factor, expected] : std::vector<std::tuple<const char*, float, double>>{
           {"rope.scaling.factor", 4, 4}, {"rope.scale_linear", 2, 2}, {"rope.scaling.factor", 0, 1}}) {
    set(name, kReal, bytes_of(factor));
    EXPECT_EQ(read().rope.linear_factor, expected) << name;
    set("rope.scaling.type", kText, test::gguf_text("linear"));
    EXPECT_EQ(read().rope.linear_factor, expected) << name;
    set("rope.scaling.type", kText, test::gguf_text("none"));
    EXPECT_EQ(read().rope.linear_factor, 1) << name;
    std::erase_if(parts_.metadata, [&](const auto& entry) { return entry.key.starts_with("llama.rope."); });
  }
  set("rope.scaling.type", kText, test::gguf_text("linear"));
  EXPECT_EQ(read().rope.linear_factor, 1) << "without a factor";
  EXPECT_THAT(refusal_of("rope.scaling.factor", kReal, bytes_of(-2.0F)),
              HasSubstr("rope.scaling.factor: is -2"));
  EXPECT_THAT(refusal_of("rope.scaling.type", kText, test::gguf_text("yarn")),
              HasSubstr("is \"yarn\"; expected none or linear"));
}

TEST_F(GgufConfigTest, TakesEqualNumbersOfLayersForOne) {
  set("attention.head_count", kArray, array_of({8, 8}));
  set("attention.head_count_kv", kArray, array_of({2, 2}));
  set("feed_forward_length", kArray, array_of({24, 24}));
  const ModelConfig config = read();
  EXPECT_EQ(config.query_heads, 8);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.feed_forward, 24);
  EXPECT_THAT(refusal_of("attention.head_count_kv", kArray, array_of({2, 1})),
              HasSubstr("attention.head_count_kv: differs between layers, which a trace cannot represent"));
  EXPECT_THAT(refusal_of("attention.head_count_kv", kArray, array_of({2})),
              HasSubstr("has 1 items; expected one for each of 2 layers"));
  EXPECT_THAT(refusal_of("attention.head_count_kv", kArray, array_of({2, 0})),
              HasSubstr("is not a number from 1"));
  EXPECT_THAT(refusal_of("block_count", kArray, array_of({2, 2})),
              HasSubstr("block_count: is not a number from 1"));
}

TEST_F(GgufConfigTest, RefusesKeysThatItDoesNotKnow) {
  for (const auto& [name, type, value] : std::vector<std::tuple<std::string, uint32_t, std::string>>{
           {"attention.shared_kv_layers", kCount, bytes_of(uint32_t{1})},
           {"rope.scaling.yarn_ext_factor", kReal, bytes_of(1.0F)},
           {"use_parallel_residual", kTruth, std::string(1, 1)},
           {"some.new_text", kText, test::gguf_text("x")},
           {"attention.sliding_window_pattern", kArray, array_of({0, 1})},
           {"attention.output_scale", kReal, bytes_of(0.5F)},
           {"expert_used_count", kCount, bytes_of(uint32_t{2})}}) {
    EXPECT_THAT(refusal_of(name, type, value),
                HasSubstr("llama." + name + ": is unknown here, and may change what is computed"));
  }
  EXPECT_THAT(refusal_of("attention.sliding_window", kCount, bytes_of(uint32_t{8})),
              HasSubstr("has a sliding window"));
}

TEST_F(GgufConfigTest, TakesZeroFalseAndFactorsOfOneForNothing) {
  set("expert_count", kCount, bytes_of(uint32_t{0}));
  set("attention.sliding_window", kCount, bytes_of(uint32_t{0}));
  set("use_parallel_residual", kTruth, std::string(1, 0));
  set("final_logit_softcapping", kReal, bytes_of(0.0F));
  set("logit_scale", kReal, bytes_of(1.0F));
  set("attention.sliding_window_pattern", kArray, array_of({0, 0}));
  set("rope.dimension_sections", kArray, array_of({}));
  set("rope.scaling.attn_factor", kReal, bytes_of(1.0F));
  set("attention.causal", kTruth, std::string(1, 1));
  set("attention.scale", kReal, bytes_of(0.25F));
  set("hidden_activation", kText, test::gguf_text("silu"));
  EXPECT_EQ(read().layers, 2);
  EXPECT_THAT(refusal_of("attention.causal", kTruth, std::string(1, 0)),
              HasSubstr("attention.causal: is not true"));
  EXPECT_THAT(refusal_of("attention.causal", kText, test::gguf_text("yes")),
              HasSubstr("attention.causal: is not true"));
  EXPECT_THAT(refusal_of("attention.scale", kReal, bytes_of(0.3F)), HasSubstr("attention.scale: is 0.3"));
  EXPECT_THAT(refusal_of("expert_count", kCount, bytes_of(uint32_t{1})), HasSubstr("models with experts"));
  EXPECT_THAT(refusal_of("hidden_activation", kText, test::gguf_text("gelu")),
              HasSubstr("is \"gelu\"; expected silu"));
}

TEST_F(GgufConfigTest, RefusesLengthsOfValuesThatAreNotTheKeys) {
  set("attention.key_length", kCount, bytes_of(uint32_t{8}));
  EXPECT_THAT(test::message_of<TraceError>([&] { read(); }),
              HasSubstr("attention.value_length: differs from the keys' length"))
      << "values have embedding_length / head_count by default";
  set("attention.value_length", kCount, bytes_of(uint32_t{8}));
  EXPECT_EQ(read().head_dim, 8);
}

TEST_F(GgufConfigTest, RefusesFilesThatAreNoModels) {
  parts_.set("general.type", std::string("adapter"));
  EXPECT_THAT(test::message_of<TraceError>([&] { read(); }),
              HasSubstr("general.type: is \"adapter\"; expected \"model\""));
}

}  // namespace
}  // namespace kvbound::traces::gguf_config_test
