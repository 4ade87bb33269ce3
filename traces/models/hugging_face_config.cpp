#include "hugging_face_config.hpp"

#include <algorithm>
#include <filesystem>
#include <vector>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/input_file.hpp>

#include "../messages.hpp"
#include "../number_in.hpp"
#include "../strict_json.hpp"

namespace kvbound::traces {
namespace {

constexpr int64_t kMostConfigBytes = int64_t{1} << 22;
constexpr JsonLimits kLimits{.levels = 6, .items = 4096};
// One object of the configuration. A field that is null counts as missing.
class Fields {
 public:
  Fields(const std::string& path, const Json& json, std::string prefix = "")
      : path_(path), json_(json), prefix_(std::move(prefix)) {}

  [[noreturn]] void refuse(const std::string& field, const std::string& problem) const {
    const Json* json = json_.member(field);
    throw TraceError(path_, json ? json->offset : json_.offset, prefix_ + field, problem);
  }

  const Json* find(const std::string& field) const {
    const Json* json = json_.member(field);
    return json && description(*json) == "null" ? nullptr : json;
  }

  std::optional<int64_t> count(const std::string& field) const {
    const Json* json = find(field);
    if (!json) return std::nullopt;
    if (json->number() && *json->number() >= 1 && *json->number() <= static_cast<uint64_t>(kMostDimension)) {
      return static_cast<int64_t>(*json->number());
    }
    refuse(field, "is " + description(*json) + "; expected a number from 1 to 2^31 - 1");
  }
  int64_t required_count(const std::string& field) const {
    const std::optional<int64_t> found = count(field);
    if (!found) refuse(field, "is missing");
    return *found;
  }

  std::optional<double> real(const std::string& field) const {
    const Json* json = find(field);
    if (!json) return std::nullopt;
    if (json->number()) return static_cast<double>(*json->number());
    const auto* other = std::get_if<Json::Other>(&json->value);
    const std::optional<double> number = other ? number_in<double>(other->text) : std::nullopt;
    if (!number) refuse(field, "is " + description(*json) + "; expected a number");
    return number;
  }

  std::optional<bool> truth(const std::string& field) const {
    const Json* json = find(field);
    if (!json) return std::nullopt;
    if (description(*json) == "true") return true;
    if (description(*json) == "false") return false;
    refuse(field, "is " + description(*json) + "; expected true or false");
  }

  std::optional<std::string> text(const std::string& field) const {
    const Json* json = find(field);
    if (!json) return std::nullopt;
    if (!json->text()) refuse(field, "is " + description(*json) + "; expected a text");
    return *json->text();
  }

  std::optional<Fields> object(const std::string& field) const {
    const Json* json = find(field);
    if (!json) return std::nullopt;
    if (!json->object()) refuse(field, "is " + description(*json) + "; expected an object");
    return Fields(path_, *json, prefix_ + field + ".");
  }

  // The text of one of several fields, of which newer versions renamed some.
  std::optional<std::string> text_of_any(const std::vector<std::string>& fields) const {
    for (const std::string& field : fields) {
      if (const std::optional<std::string> found = text(field)) return found;
    }
    return std::nullopt;
  }

 private:
  const std::string& path_;
  const Json& json_;
  std::string prefix_;
};

ModelFamily family_of(const Fields& fields) {
  const std::optional<std::string> type = fields.text("model_type");
  if (!type) fields.refuse("model_type", "is missing");
  if (*type == "mistral") return ModelFamily::llama;
  const auto known = std::ranges::find(kModelFamilies, *type, &ModelFamilyTraits::name);
  if (known == kModelFamilies.end()) {
    fields.refuse("model_type", "is " + in_quotes(*type) + "; expected llama, mistral, qwen2 or qwen3");
  }
  return known->family;
}

// Refuses what changes the computation and is not computed here.
void refuse_others(const Fields& fields) {
  const auto absent = [&](const char* field, const std::string& what) {
    if (const Json* json = fields.find(field)) fields.refuse(field, "is " + description(*json) + ": " + what);
  };
  const bool windowed = fields.text("model_type") == "mistral";  // unless it says otherwise
  if (fields.truth("use_sliding_window").value_or(windowed)) {
    absent("sliding_window", "a trace cannot say that attention has a sliding window");
  }
  if (const Json* types = fields.find("layer_types"); types && types->array()) {
    for (const Json& type : *types->array()) {
      if (type.text() && *type.text() == "full_attention") continue;
      fields.refuse("layer_types", "has " + description(type) + "; a trace records full_attention only");
    }
  }
  absent("attn_logit_softcapping", "a trace cannot say that logits are capped");
  absent("final_logit_softcapping", "capped logits are not computed");
  absent("num_local_experts", "models with experts are not computed");
  absent("num_experts", "models with experts are not computed");
  absent("kv_lora_rank", "a trace cannot record latent attention");
  absent("quantization_config", "quantised weights are read from GGUF files only");
  if (const std::optional<double> part = fields.real("partial_rotary_factor"); part && *part != 1) {
    fields.refuse("partial_rotary_factor", "RoPE of part of a head is not computed");
  }
  if (fields.truth("mlp_bias").value_or(false))
    fields.refuse("mlp_bias", "is true: such biases are not computed");
  const std::string activation = fields.text("hidden_act").value_or("silu");
  if (activation != "silu")
    fields.refuse("hidden_act", "is " + in_quotes(activation) + "; expected \"silu\"");
}

Llama3Scaling llama3_scaling(const Fields& fields) {
  return {.factor = fields.real("factor").value_or(0),
          .low = fields.real("low_freq_factor").value_or(0),
          .high = fields.real("high_freq_factor").value_or(0),
          .original_context = fields.count("original_max_position_embeddings").value_or(0)};
}

RopeConfig rope_of(const Fields& fields) {
  RopeConfig rope;
  if (const auto base = fields.real("rope_theta")) rope.base = *base;
  const bool renamed = !fields.find("rope_scaling");
  const std::optional<Fields> scaling = fields.object(renamed ? "rope_parameters" : "rope_scaling");
  if (!scaling) return rope;
  if (const auto base = scaling->real("rope_theta")) rope.base = *base;
  const std::string type = scaling->text_of_any({"rope_type", "type"}).value_or("default");
  if (type == "linear") {
    rope.linear_factor = scaling->real("factor").value_or(0);
  } else if (type == "llama3") {
    rope.llama3 = llama3_scaling(*scaling);
  } else if (type != "default") {
    scaling->refuse("rope_type", "is " + in_quotes(type) + "; expected default, linear or llama3");
  }
  return rope;
}

// The name of the folder that holds a file.
std::string folder_name(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().parent_path().filename().string();
}

}  // namespace

ModelConfig read_hugging_face_config(const std::string& path) {
  const InputFile file(path);
  if (file.size() > kMostConfigBytes) {
    throw TraceError(path, -1, "", "has " + std::to_string(file.size()) + " bytes; expected at most 4 MiB");
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text, "");
  const Json json = parse_strict_json(path, 0, "", text, kLimits);
  const Fields fields(path, json);
  ModelConfig config;
  config.family = family_of(fields);
  refuse_others(fields);
  const ModelFamilyTraits& family = traits(config.family);
  config.name = fields.text("_name_or_path").value_or(folder_name(path));
  config.layers = fields.required_count("num_hidden_layers");
  config.model_dim = fields.required_count("hidden_size");
  config.query_heads = fields.required_count("num_attention_heads");
  config.kv_heads = fields.count("num_key_value_heads").value_or(config.query_heads);
  config.head_dim = fields.count("head_dim").value_or(config.model_dim / config.query_heads);
  config.feed_forward = fields.required_count("intermediate_size");
  config.vocabulary = fields.required_count("vocab_size");
  config.context = fields.count("max_position_embeddings").value_or(0);
  config.norm_epsilon = fields.real("rms_norm_eps").value_or(1e-6);
  config.rope = rope_of(fields);
  config.tied_output = fields.truth("tie_word_embeddings").value_or(false);
  config.qkv_bias = fields.truth("attention_bias").value_or(family.qkv_bias);
  config.qk_norm = family.qk_norm;
  if (config.qkv_bias && config.family != ModelFamily::qwen2) {
    fields.refuse("attention_bias", "is true: W^O would have a bias, which a trace cannot represent");
  }
  require_consistent(config, path);
  return config;
}

}  // namespace kvbound::traces
