#include "hugging_face_config.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

#include <kvbound/traces/input_file.hpp>

#include "../json_field.hpp"

namespace kvbound::traces {
namespace {

constexpr int64_t kMostConfigBytes = int64_t{1} << 22;
constexpr JsonLimits kLimits{.levels = 6, .items = 4096};

// Fields that are null count as missing; values of other types are refused.
std::optional<int64_t> count(const JsonField& object, const char* name) {
  const auto field = object.optional_member(name);
  return field ? std::optional(field->integer(1, kMostDimension)) : std::nullopt;
}

std::optional<double> real(const JsonField& object, const char* name) {
  const auto field = object.optional_member(name);
  return field ? std::optional(field->number()) : std::nullopt;
}

bool truth(const JsonField& object, const char* name, bool otherwise) {
  const auto field = object.optional_member(name);
  return field ? field->boolean() : otherwise;
}

std::string text(const JsonField& object, const char* name, const std::string& otherwise) {
  const auto field = object.optional_member(name);
  return field ? field->any_text() : otherwise;
}

ModelFamily family_of(const JsonField& type) {
  const std::string name = type.any_text();
  if (name == "mistral") return ModelFamily::llama;
  const auto known = std::ranges::find(kModelFamilies, name, &ModelFamilyTraits::name);
  if (known == kModelFamilies.end()) type.expected("llama, mistral, qwen2 or qwen3");
  return known->family;
}

// Refuses what changes the computation and is not computed here.
void refuse_others(const JsonField& config) {
  const auto absent = [&](const char* name, const std::string& what) {
    if (const auto field = config.optional_member(name))
      field->refuse("is " + field->description() + ": " + what);
  };
  const bool windowed = config.member("model_type").text() == "mistral";  // unless it says otherwise
  if (truth(config, "use_sliding_window", windowed)) {
    absent("sliding_window", "a trace cannot say that attention has a sliding window");
  }
  if (const auto types = config.optional_member("layer_types"); types && types->is_list()) {
    for (const JsonField& type : types->items(true)) {
      if (type.description() != "\"full_attention\"")
        type.refuse("is " + type.description() + "; a trace records full_attention only");
    }
  }
  absent("attn_logit_softcapping", "a trace cannot say that logits are capped");
  absent("final_logit_softcapping", "capped logits are not computed");
  absent("num_local_experts", "models with experts are not computed");
  absent("num_experts", "models with experts are not computed");
  absent("kv_lora_rank", "a trace cannot record latent attention");
  absent("quantization_config", "quantised weights are read from GGUF files only");
  if (real(config, "partial_rotary_factor").value_or(1) != 1)
    config.member("partial_rotary_factor").refuse("RoPE of part of a head is not computed");
  if (truth(config, "mlp_bias", false))
    config.member("mlp_bias").refuse("is true: such biases are not computed");
  if (const auto activation = config.optional_member("hidden_act")) activation->one_of({"silu"});
}

Llama3Scaling llama3_scaling(const JsonField& scaling) {
  return {.factor = real(scaling, "factor").value_or(0),
          .low = real(scaling, "low_freq_factor").value_or(0),
          .high = real(scaling, "high_freq_factor").value_or(0),
          .original_context = count(scaling, "original_max_position_embeddings").value_or(0)};
}

RopeConfig rope_of(const JsonField& config) {
  RopeConfig rope;
  if (const auto base = real(config, "rope_theta")) rope.base = *base;
  auto scaling = config.optional_member("rope_scaling");  // newer versions renamed it, and its type
  if (!scaling) scaling = config.optional_member("rope_parameters");
  if (!scaling) return rope;
  if (const auto base = real(*scaling, "rope_theta")) rope.base = *base;
  auto type = scaling->optional_member("rope_type");
  if (!type) type = scaling->optional_member("type");
  const std::string name = type ? type->any_text() : "default";
  if (name == "linear") {
    rope.linear_factor = real(*scaling, "factor").value_or(0);
  } else if (name == "llama3") {
    rope.llama3 = llama3_scaling(*scaling);
  } else if (name != "default") {
    type->expected("default, linear or llama3");
  }
  return rope;
}

// The name of the folder that holds a file.
std::string folder_name(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().parent_path().filename().string();
}

}  // namespace

ModelConfig read_hugging_face_config(const std::string& path) {
  const Json json = parse_strict_json(path, 0, "", whole_text(path, kMostConfigBytes), kLimits);
  const JsonField root(path, "", json);
  ModelConfig config;
  config.family = family_of(root.member("model_type"));
  refuse_others(root);
  const ModelFamilyTraits& family = traits(config.family);
  const auto required = [&](const char* name) { return root.member(name).integer(1, kMostDimension); };
  config.name = text(root, "_name_or_path", folder_name(path));
  config.layers = required("num_hidden_layers");
  config.model_dim = required("hidden_size");
  config.query_heads = required("num_attention_heads");
  config.kv_heads = count(root, "num_key_value_heads").value_or(config.query_heads);
  config.head_dim = count(root, "head_dim").value_or(config.model_dim / config.query_heads);
  config.feed_forward = required("intermediate_size");
  config.vocabulary = required("vocab_size");
  config.context = count(root, "max_position_embeddings").value_or(0);
  config.norm_epsilon = real(root, "rms_norm_eps").value_or(1e-6);
  config.rope = rope_of(root);
  config.tied_output = truth(root, "tie_word_embeddings", false);
  config.qkv_bias = truth(root, "attention_bias", family.qkv_bias);
  config.qk_norm = family.qk_norm;
  if (config.qkv_bias && config.family != ModelFamily::qwen2) {
    root.member("attention_bias").refuse("is true: W^O would have a bias, which a trace cannot represent");
  }
  require_consistent(config, path);
  return config;
}

}  // namespace kvbound::traces
