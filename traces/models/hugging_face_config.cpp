#include "hugging_face_config.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/input_file.hpp>

#include "../json_field.hpp"

namespace kvbound::traces {
namespace {

constexpr int64_t kMostConfigBytes = int64_t{1} << 22;
constexpr JsonLimits kLimits{.levels = 12, .items = 65536, .python = true};

// What transformers' configuration classes have for fields that are missing, and of which
// family their models are.
struct ConfigClass {
  std::string_view model_type;
  ModelFamily family;
  int64_t vocabulary, feed_forward, context;
  int64_t kv_heads;  // 0: as many as query heads
  int64_t head_dim;  // 0: model_dim / query_heads
};
constexpr std::array<ConfigClass, 4> kConfigClasses{{
    {"llama", ModelFamily::llama, 32000, 11008, 2048, 0, 0},
    {"mistral", ModelFamily::llama, 32000, 14336, 131072, 8, 0},
    {"qwen2", ModelFamily::qwen2, 151936, 22016, 32768, 32, 0},
    {"qwen3", ModelFamily::qwen3, 151936, 22016, 32768, 32, 128},
}};
constexpr int64_t kModelDim = 4096, kLayers = 32, kQueryHeads = 32, kSlidingWindow = 4096,
                  kMaxWindowLayers = 28;
constexpr double kNormEpsilon = 1e-6, kRopeBase = 10000;

// Fields that are null count as missing; values of other types are refused.
std::optional<int64_t> count(const JsonField& object, const char* name) {
  const auto field = object.optional_member(name);
  return field ? std::optional(field->integer(1, kMostDimension)) : std::nullopt;
}

// The same where null is no value.
int64_t size(const JsonField& object, const char* name, int64_t otherwise) {
  const auto field = object.find(name);
  return field ? field->integer(1, kMostDimension) : otherwise;
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

const ConfigClass& class_of(const JsonField& type) {
  const auto* found = std::ranges::find(kConfigClasses, type.any_text(), &ConfigClass::model_type);
  if (found == kConfigClasses.end()) type.expected("llama, mistral, qwen2 or qwen3");
  return *found;
}

// Refuses layers with a sliding window. Mistral's all have one, unless it is null; of the others the layers
// that layer_types names, or, without it, those from max_window_layers on, if use_sliding_window is true.
void refuse_windows(const JsonField& config, const ConfigClass& own, int64_t layers) {
  if (const auto types = config.optional_member("layer_types")) {
    const std::vector<JsonField> items = types->items(true);
    for (const JsonField& type : items) {
      if (type.description() != "\"full_attention\"")
        type.refuse("is " + type.description() + "; a trace records full_attention only");
    }
    if (std::ssize(items) != layers)
      types->refuse("has " + std::to_string(items.size()) + " items; expected one for each of " +
                    std::to_string(layers) + " layers");
  }
  const bool mistral = own.model_type == "mistral";
  if (!mistral && (config.optional_member("layer_types") || !truth(config, "use_sliding_window", false)))
    return;
  const auto window = config.find("sliding_window");
  if (window && window->is_null()) return;
  const auto first = config.optional_member("max_window_layers");
  const int64_t full = first ? first->integer(0, kMostDimension) : kMaxWindowLayers;
  if (own.family != ModelFamily::llama && full >= layers) return;
  constexpr const char* kWhy = ": a trace cannot say that attention has a sliding window";
  if (window) window->refuse("is " + window->description() + kWhy);
  throw TraceError(config.path(), -1, "sliding_window",
                   "is missing, and " + std::to_string(kSlidingWindow) + " by default" + kWhy);
}

bool is_off(const JsonField& field) {
  const std::string text = field.description();
  return text == "0" || text == "0.0" || text == "false";
}

// Refuses what changes the computation and is not computed here.
void refuse_others(const JsonField& config) {
  const auto absent = [&](const char* name, const std::string& what) {
    const auto field = config.optional_member(name);
    if (field && !is_off(*field)) field->refuse("is " + field->description() + ": " + what);
  };
  absent("attn_logit_softcapping", "a trace cannot say that logits are capped");
  absent("final_logit_softcapping", "capped logits are not computed");
  absent("num_local_experts", "models with experts are not computed");
  absent("num_experts", "models with experts are not computed");
  absent("n_routed_experts", "models with experts are not computed");
  absent("kv_lora_rank", "a trace cannot record latent attention");
  absent("quantization_config", "quantised weights are read from GGUF files only");
  absent("compression_config", "quantised weights are read from GGUF files only");
  absent("use_bidirectional_attention", "a trace's mask is causal");
  absent("is_encoder_decoder", "only decoders are computed");
  absent("add_cross_attention", "attention to another model is not computed");
  absent("mlp_bias", "such biases are not computed");
  if (!truth(config, "is_causal", true))
    config.member("is_causal").refuse("is false: a trace's mask is causal");
  if (const auto activation = config.optional_member("hidden_act")) activation->one_of({"silu", "swish"});
}

// A field that may be in the object of RoPE's parameters or beside it, but not with another value.
std::optional<JsonField> field_of_rope(const JsonField& config, const std::optional<JsonField>& parameters,
                                       const char* name) {
  const auto outside = config.optional_member(name);
  const auto inside = parameters ? parameters->optional_member(name) : std::nullopt;
  if (inside && outside && inside->number() != outside->number()) {
    inside->refuse("is " + inside->description() + ", but " + name + " beside it is " +
                   outside->description());
  }
  return inside ? inside : outside;
}

Llama3Scaling llama3_scaling(const JsonField& config, const JsonField& scaling, int64_t context) {
  const auto original = field_of_rope(config, scaling, "original_max_position_embeddings");
  return {.factor = scaling.member("factor").number(),
          .low = scaling.member("low_freq_factor").number(),
          .high = scaling.member("high_freq_factor").number(),
          .original_context = original ? original->integer(1, kMostDimension) : context};
}

constexpr auto kRopeParameters = std::to_array<std::string_view>(
    {"rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
     "original_max_position_embeddings", "partial_rotary_factor", "attention_factor", "beta_fast",
     "beta_slow", "short_factor", "long_factor", "finetuned"});

// RoPE as an object of parameters has it, or without one.
RopeConfig rope_of(const JsonField& config, const std::optional<JsonField>& parameters, int64_t context) {
  RopeConfig rope;
  if (const auto rotated = field_of_rope(config, parameters, "partial_rotary_factor");
      rotated && rotated->number() != 1)
    rotated->refuse("is " + rotated->description() + "; RoPE of part of a head is not computed");
  const auto base = field_of_rope(config, parameters, "rope_theta");
  rope.base = base ? base->number() : kRopeBase;
  if (!parameters) return rope;
  parameters->require_known(kRopeParameters, "RoPE's parameters");
  auto type = parameters->optional_member("rope_type");
  if (!type) type = parameters->optional_member("type");
  const std::string name = type ? type->any_text() : "default";
  if (name == "linear") {
    rope.linear_factor = parameters->member("factor").number();
  } else if (name == "llama3") {
    rope.llama3 = llama3_scaling(config, *parameters, context);
  } else if (name != "default") {
    type->expected("default, linear or llama3");
  }
  return rope;
}

// transformers renamed rope_scaling to rope_parameters; a file may have both.
RopeConfig rope_of(const JsonField& config, int64_t context) {
  const auto parameters_of = [&](const char* name) {
    const auto field = config.optional_member(name);
    return field && !field->members().empty() ? field : std::nullopt;
  };
  const auto older = parameters_of("rope_scaling"), newer = parameters_of("rope_parameters");
  const RopeConfig rope = rope_of(config, older ? older : newer, context);
  if (older && newer && rope_of(config, newer, context) != rope)
    newer->refuse("says something else than rope_scaling; expected the same");
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
  const ConfigClass& own = class_of(root.member("model_type"));
  ModelConfig config;
  config.family = own.family;
  config.name = text(root, "_name_or_path", folder_name(path));
  config.layers = size(root, "num_hidden_layers", kLayers);
  refuse_windows(root, own, config.layers);
  refuse_others(root);
  config.model_dim = size(root, "hidden_size", kModelDim);
  config.query_heads = size(root, "num_attention_heads", kQueryHeads);
  const bool says_kv_heads = root.find("num_key_value_heads").has_value();  // null: as many as query heads
  config.kv_heads = count(root, "num_key_value_heads")
                        .value_or(says_kv_heads || own.kv_heads == 0 ? config.query_heads : own.kv_heads);
  config.head_dim = count(root, "head_dim")
                        .value_or(own.head_dim != 0 ? own.head_dim : config.model_dim / config.query_heads);
  config.feed_forward = size(root, "intermediate_size", own.feed_forward);
  config.vocabulary = size(root, "vocab_size", own.vocabulary);
  config.context = count(root, "max_position_embeddings").value_or(own.context);
  config.norm_epsilon = real(root, "rms_norm_eps").value_or(kNormEpsilon);
  config.rope = rope_of(root, config.context);
  config.tied_output = truth(root, "tie_word_embeddings", false);
  const ModelFamilyTraits& family = traits(config.family);
  const bool may_have_bias = own.model_type != "mistral";  // whose class has no such field
  config.qkv_bias = family.qkv_bias || (may_have_bias && truth(root, "attention_bias", false));
  config.qk_norm = family.qk_norm;
  require_consistent(config, path);
  return config;
}

}  // namespace kvbound::traces
