#include "gguf_config.hpp"

#include <algorithm>

#include <kvbound/reference/core/error.hpp>

#include "../messages.hpp"

namespace kvbound::traces {
namespace {

// The metadata of one architecture: keys are ARCHITECTURE.NAME.
class Keys {
 public:
  explicit Keys(const GgufFile& file) : file_(file), prefix_(architecture() + ".") {}

  std::string architecture() const {
    const GgufValue* value = find_key("general.architecture");
    const auto* text = value ? std::get_if<std::string>(&value->value) : nullptr;
    if (!text) throw TraceError(file_.path(), -1, "general.architecture", "is missing or not a text");
    return *text;
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& problem) const {
    const GgufValue* value = find(name);
    throw TraceError(file_.path(), value ? value->offset : -1, printable(prefix_ + name), problem);
  }

  const GgufValue* find(const std::string& name) const { return find_key(prefix_ + name); }

  std::optional<int64_t> count(const std::string& name) const {
    const GgufValue* value = find(name);
    if (!value) return std::nullopt;
    if (std::holds_alternative<GgufArray>(value->value)) {
      refuse(name, "differs between layers, which a trace cannot represent");
    }
    const auto* number = std::get_if<int64_t>(&value->value);
    if (!number || *number < 1 || *number > kMostDimension)
      refuse(name, "is not a number from 1 to 2^31 - 1");
    return *number;
  }
  int64_t required_count(const std::string& name) const {
    const std::optional<int64_t> found = count(name);
    if (!found) refuse(name, "is missing");
    return *found;
  }
  std::optional<double> real(const std::string& name) const {
    const GgufValue* value = find(name);
    if (!value) return std::nullopt;
    const auto* number = std::get_if<double>(&value->value);
    if (!number) refuse(name, "is not a real number");
    return *number;
  }
  std::optional<std::string> text(const std::string& name) const {
    const GgufValue* value = find(name);
    if (!value) return std::nullopt;
    const auto* text = std::get_if<std::string>(&value->value);
    if (!text) refuse(name, "is not a text");
    return *text;
  }

 private:
  const GgufValue* find_key(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? nullptr : &found->second;
  }

  const GgufFile& file_;
  std::string prefix_;
};

// Refuses what changes the computation and is not computed here, unless it is switched off by 0.
void refuse_others(const Keys& keys) {
  const auto absent = [&](const char* name, const std::string& what) {
    const GgufValue* value = keys.find(name);
    if (!value) return;
    const auto* integer = std::get_if<int64_t>(&value->value);
    const auto* real = std::get_if<double>(&value->value);
    if ((integer && *integer == 0) || (real && *real == 0)) return;
    keys.refuse(name, what);
  };
  absent("attention.sliding_window", "a trace cannot say that attention has a sliding window");
  absent("attn_logit_softcapping", "a trace cannot say that logits are capped");
  absent("final_logit_softcapping", "capped logits are not computed");
  absent("expert_count", "models with experts are not computed");
  absent("attention.kv_lora_rank", "a trace cannot record latent attention");
  absent("attention.max_alibi_bias", "a trace cannot say that attention has a bias");
  absent("attention.clamp_kqv", "clamped queries, keys and values are not computed");
  absent("logit_scale", "scaled logits are not computed");
  absent("residual_scale", "scaled residuals are not computed");
  absent("embedding_scale", "scaled embeddings are not computed");
  absent("attention.scale", "another scale of logits than 1 / sqrt(head_dim) is not computed");
}

RopeConfig rope_of(const Keys& keys, ModelFamily family, int64_t head_dim) {
  RopeConfig rope;
  rope.pairing = family == ModelFamily::llama ? RopePairing::neighbours : RopePairing::halves;
  rope.base = keys.real("rope.freq_base").value_or(10000);
  if (const auto rotated = keys.count("rope.dimension_count"); rotated && *rotated != head_dim) {
    keys.refuse("rope.dimension_count",
                "is " + std::to_string(*rotated) + "; RoPE of part of a head is not computed");
  }
  const std::string type = keys.text("rope.scaling.type").value_or("none");
  if (type == "linear") {
    rope.linear_factor = keys.real("rope.scaling.factor").value_or(0);
  } else if (type != "none") {
    keys.refuse("rope.scaling.type", "is " + in_quotes(type) + "; expected none or linear");
  }
  return rope;
}

}  // namespace

ModelConfig read_gguf_config(const GgufFile& file) {
  const Keys keys(file);
  const std::string architecture = keys.architecture();
  const auto known = std::ranges::find(kModelFamilies, architecture, &ModelFamilyTraits::name);
  if (known == kModelFamilies.end()) {
    throw TraceError(file.path(), file.metadata().at("general.architecture").offset, "general.architecture",
                     "is " + in_quotes(architecture) + "; expected llama, qwen2 or qwen3");
  }
  refuse_others(keys);
  ModelConfig config;
  config.family = known->family;
  const auto name = file.metadata().find("general.name");
  const auto* named = name == file.metadata().end() ? nullptr : std::get_if<std::string>(&name->second.value);
  config.name = named ? *named : architecture;
  config.layers = keys.required_count("block_count");
  config.model_dim = keys.required_count("embedding_length");
  config.query_heads = keys.required_count("attention.head_count");
  config.kv_heads = keys.count("attention.head_count_kv").value_or(config.query_heads);
  config.head_dim = keys.count("attention.key_length").value_or(config.model_dim / config.query_heads);
  if (keys.count("attention.value_length").value_or(config.head_dim) != config.head_dim) {
    keys.refuse("attention.value_length", "differs from the keys'; a trace has one head_dim");
  }
  config.feed_forward = keys.required_count("feed_forward_length");
  config.context = keys.count("context_length").value_or(0);
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (!embedding) throw TraceError(file.path(), -1, "token_embd.weight", "is missing");
  config.vocabulary = embedding->rows();
  config.norm_epsilon = keys.real("attention.layer_norm_rms_epsilon").value_or(0);
  config.rope = rope_of(keys, config.family, config.head_dim);
  config.tied_output = file.find("output.weight") == nullptr;
  config.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  config.qk_norm = known->qk_norm;
  require_consistent(config, file.path());
  return config;
}

}  // namespace kvbound::traces
