// What fields of config.json mean, their defaults, and those that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/models/hugging_face_config.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::traces::hugging_face_config_test {
namespace {

using testing::HasSubstr;

ModelConfig config_of(const std::string& json) {
  const test::TemporaryFolder folder;
  return read_hugging_face_config(folder.write("config.json", json));
}
std::string refusal_of(const std::string& json) {
  return test::message_of<TraceError>([&] { config_of(json); });
}
// A small model of a class with further fields.
std::string small(const std::string& type, const std::string& more = "") {
  return R"({"model_type": ")" + type +
         R"(", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2)" +
         (more.empty() ? "" : ", " + more) + "}";
}

TEST(HuggingFaceConfig, HasTheDefaultsOfItsClass) {
  const ModelConfig llama = config_of(R"({"model_type": "llama"})");
  EXPECT_EQ(llama.layers, 32);
  EXPECT_EQ(llama.model_dim, 4096);
  EXPECT_EQ(llama.kv_heads, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.feed_forward, 11008);
  EXPECT_EQ(llama.vocabulary, 32000);
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_EQ(llama.rope, (RopeConfig{}));
  EXPECT_FALSE(llama.tied_output);
  const ModelConfig mistral = config_of(R"({"model_type": "mistral", "sliding_window": null})");
  EXPECT_EQ(mistral.kv_heads, 8);
  EXPECT_EQ(mistral.feed_forward, 14336);
  EXPECT_EQ(
      config_of(R"({"model_type": "mistral", "sliding_window": null, "num_key_value_heads": null})").kv_heads,
      32);
  const ModelConfig qwen3 = config_of(R"({"model_type": "qwen3", "hidden_size": 1024})");
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(qwen3.vocabulary, 151936);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(config_of(small("qwen2", R"("attention_bias": false)")).qkv_bias, true)
      << "a field that its class does not have";
  EXPECT_EQ(config_of(small("llama", R"("attention_bias": true)")).qkv_bias, true);
}

TEST(HuggingFaceConfig, RefusesWindowsThatLayersHave) {
  EXPECT_THAT(refusal_of(small("mistral")), HasSubstr("sliding_window: is missing, and 4096 by default"));
  EXPECT_THAT(refusal_of(small("mistral", R"("sliding_window": 16, "use_sliding_window": false)")),
              HasSubstr("sliding_window: is 16"));
  EXPECT_THAT(refusal_of(small(
                  "mistral", R"("sliding_window": 16, "layer_types": ["full_attention", "full_attention"])")),
              HasSubstr("sliding_window: is 16"));
  for (const char* type : {"qwen2", "qwen3"}) {
    EXPECT_THAT(refusal_of(small(type, R"("use_sliding_window": true, "max_window_layers": 1)")),
                HasSubstr("sliding_window: is missing, and 4096 by default"));
    EXPECT_THAT(
        refusal_of(small(type, R"("use_sliding_window": true, "max_window_layers": 0, "sliding_window": 8)")),
        HasSubstr("sliding_window: is 8"));
    EXPECT_THAT(refusal_of(small(type, R"("layer_types": ["full_attention", "sliding_attention"])")),
                HasSubstr("layer_types[1]: is \"sliding_attention\""));
  }
}

TEST(HuggingFaceConfig, TakesWindowsThatNoLayerHasForNone) {
  for (
      const char* more :
      {R"("sliding_window": 8)",
       R"("use_sliding_window": false, "sliding_window": 8, "max_window_layers": 0)",
       R"("use_sliding_window": true, "sliding_window": null, "max_window_layers": 0)",
       R"("use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2)",
       R"("use_sliding_window": true, "sliding_window": 8)",
       R"("use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0, "layer_types": ["full_attention", "full_attention"])"}) {
    EXPECT_EQ(config_of(small("qwen2", more)).layers, 2) << more;
  }
}

TEST(HuggingFaceConfig, FindsRopeInBothOfItsPlaces) {
  const Llama3Scaling scaling{8, 1, 4, 64};
  const std::string llama3 =
      R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4)";
  const auto rope = [](const std::string& more) { return config_of(small("llama", more)).rope; };
  EXPECT_EQ(rope(R"("rope_scaling": {)" + llama3 + R"(, "original_max_position_embeddings": 64})").llama3,
            scaling);
  EXPECT_EQ(rope(R"("rope_parameters": {)" + llama3 + R"(}, "original_max_position_embeddings": 64)").llama3,
            scaling);
  EXPECT_EQ(rope(R"("rope_parameters": {)" + llama3 + R"(}, "max_position_embeddings": 64)").llama3, scaling);
  EXPECT_EQ(rope(R"("rope_parameters": {)" + llama3 + "}").llama3->original_context, 2048)
      << "the class's default";
  EXPECT_EQ(rope(R"("rope_scaling": {}, "rope_parameters": {"rope_theta": 5000})").base, 5000);
  EXPECT_EQ(rope(R"("rope_theta": 5000, "rope_scaling": {"type": "linear", "factor": 2})").linear_factor, 2);
  EXPECT_EQ(
      rope(
          R"("rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "linear", "factor": 2.0})")
          .linear_factor,
      2);
}

TEST(HuggingFaceConfig, RefusesFieldsOfRopeThatContradictEachOther) {
  const auto refusal = [](const std::string& more) { return refusal_of(small("llama", more)); };
  EXPECT_THAT(refusal(R"("rope_theta": 5000, "rope_parameters": {"rope_theta": 10000})"),
              HasSubstr("rope_parameters.rope_theta: is 10000, but rope_theta beside it is 5000"));
  EXPECT_THAT(
      refusal(
          R"("rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"})"),
      HasSubstr("rope_parameters: says something else than rope_scaling"));
  EXPECT_THAT(refusal(R"("rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2}})"),
              HasSubstr("member \"full_attention\" is unknown"));
  EXPECT_THAT(refusal(R"("rope_parameters": {"partial_rotary_factor": 0.5})"),
              HasSubstr("RoPE of part of a head"));
  EXPECT_THAT(refusal(R"("rope_scaling": {"rope_type": "linear"})"),
              HasSubstr("rope_scaling.factor: is missing"));
}

TEST(HuggingFaceConfig, RefusesOtherMasks) {
  EXPECT_THAT(refusal_of(small("llama", R"("is_causal": false)")),
              HasSubstr("is_causal: is false: a trace's mask is causal"));
  EXPECT_THAT(refusal_of(small("llama", R"("use_bidirectional_attention": true)")),
              HasSubstr("use_bidirectional_attention: is true"));
  EXPECT_EQ(
      config_of(small("llama", R"("is_causal": true, "num_experts": 0, "is_encoder_decoder": false)")).layers,
      2);
}

TEST(HuggingFaceConfig, IsJsonAsPythonWritesIt) {
  EXPECT_EQ(config_of(small("llama", R"("unneeded": [Infinity, -Infinity, NaN], "text": "NaN")")).layers, 2);
  EXPECT_THAT(refusal_of(small("llama", R"("rope_theta": Infinity)")),
              HasSubstr("rope_theta: is Infinity; expected a number"));
}

}  // namespace
}  // namespace kvbound::traces::hugging_face_config_test
