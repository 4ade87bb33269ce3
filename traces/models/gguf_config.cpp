#include "gguf_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

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

  // The names of all keys of the architecture.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (auto entry = file_.metadata().lower_bound(prefix_);
         entry != file_.metadata().end() && entry->first.starts_with(prefix_); ++entry) {
      names.push_back(entry->first.substr(prefix_.size()));
    }
    return names;
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& problem) const {
    const GgufValue* value = find(name);
    throw TraceError(file_.path(), value ? value->offset : -1, printable(prefix_ + name), problem);
  }

  const GgufValue* find(const std::string& name) const { return find_key(prefix_ + name); }
  // The items of a key's array, or its one value.
  std::vector<GgufValue> values(const std::string& name) const {
    const GgufValue& value = *find(name);
    const auto* list = std::get_if<GgufArray>(&value.value);
    return list ? file_.items(prefix_ + name, *list) : std::vector{value};
  }

  std::optional<int64_t> count(const std::string& name) const {
    const GgufValue* value = find(name);
    return value ? std::optional(count_of(name, *value)) : std::nullopt;
  }
  int64_t required_count(const std::string& name) const {
    const std::optional<int64_t> found = count(name);
    if (!found) refuse(name, "is missing");
    return *found;
  }
  // The same of a key that may have a number for each layer, which all have to be equal.
  std::optional<int64_t> count_of_layers(const std::string& name) const {
    const GgufValue* value = find(name);
    const auto* list = value ? std::get_if<GgufArray>(&value->value) : nullptr;
    if (!list) return count(name);
    const int64_t layers = required_count("block_count");
    if (list->items != layers) {
      refuse(name, "has " + std::to_string(list->items) + " items; expected one for each of " +
                       std::to_string(layers) + " layers");
    }
    const std::vector<GgufValue> items = values(name);
    const int64_t first = count_of(name, items.front());
    for (const GgufValue& item : items) {
      if (count_of(name, item) != first)
        refuse(name, "differs between layers, which a trace cannot represent");
    }
    return first;
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
  int64_t count_of(const std::string& name, const GgufValue& value) const {
    const auto* number = std::get_if<int64_t>(&value.value);
    if (!number || *number < 1 || *number > kMostDimension)
      refuse(name, "is not a number from 1 to 2^31 - 1");
    return *number;
  }
  const GgufValue* find_key(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? nullptr : &found->second;
  }

  const GgufFile& file_;
  std::string prefix_;
};

// Keys that are read below, and keys that do not change what is recorded: of tokens, of positions beyond
// which a model was not trained, of what is made of the last hidden states, and of norms and scalings that
// these architectures do not have.
constexpr auto kKnown = std::to_array<std::string_view>({"block_count",
                                                         "embedding_length",
                                                         "feed_forward_length",
                                                         "context_length",
                                                         "vocab_size",
                                                         "attention.head_count",
                                                         "attention.head_count_kv",
                                                         "attention.key_length",
                                                         "attention.value_length",
                                                         "attention.layer_norm_rms_epsilon",
                                                         "attention.layer_norm_epsilon",
                                                         "attention.causal",
                                                         "attention.scale",
                                                         "rope.dimension_count",
                                                         "rope.freq_base",
                                                         "rope.scaling.type",
                                                         "rope.scaling.factor",
                                                         "rope.scale_linear",
                                                         "rope.scaling.original_context_length",
                                                         "rope.scaling.finetuned",
                                                         "hidden_activation",
                                                         "tensor_data_layout",
                                                         "pooling_type",
                                                         "classifier.output_labels"});

// Keys by which numbers are multiplied, so that 1 changes nothing.
constexpr auto kFactors = std::to_array<std::string_view>({"logit_scale", "residual_scale", "embedding_scale",
                                                           "attention.output_scale", "attention.value_scale",
                                                           "rope.scaling.attn_factor"});

// What a key means that is refused; of others it is unknown.
constexpr auto kMeanings = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"attention.sliding_window", "a trace cannot say that attention has a sliding window"},
     {"attn_logit_softcapping", "a trace cannot say that logits are capped"},
     {"final_logit_softcapping", "capped logits are not computed"},
     {"expert_count", "models with experts are not computed"},
     {"attention.kv_lora_rank", "a trace cannot record latent attention"},
     {"attention.max_alibi_bias", "a trace cannot say that attention has a bias"},
     {"attention.clamp_kqv", "clamped queries, keys and values are not computed"},
     {"logit_scale", "scaled logits are not computed"},
     {"residual_scale", "scaled residuals are not computed"},
     {"embedding_scale", "scaled embeddings are not computed"}});

bool is_number(const GgufValue& value, double number) {
  const auto* integer = std::get_if<int64_t>(&value.value);
  const auto* real = std::get_if<double>(&value.value);
  const auto* truth = std::get_if<bool>(&value.value);
  return (integer && static_cast<double>(*integer) == number) || (real && *real == number) ||
         (truth && *truth == (number != 0));
}

// Refuses what changes the computation and is not computed here, unless it is switched off by 0.
void refuse_others(const Keys& keys) {
  for (const std::string& name : keys.names()) {
    if (std::ranges::find(kKnown, name) != kKnown.end()) continue;
    const bool is_factor = std::ranges::find(kFactors, name) != kFactors.end();
    const auto is_plain = [&](const GgufValue& value) {
      return is_number(value, 0) || (is_factor && is_number(value, 1));
    };
    if (std::ranges::all_of(keys.values(name), is_plain)) continue;
    const auto* meaning = std::ranges::find(kMeanings, name, &decltype(kMeanings)::value_type::first);
    keys.refuse(name, meaning != kMeanings.end()
                          ? std::string(meaning->second)
                          : "is unknown here, and may change what is computed; expected no such key");
  }
  const GgufValue* causal = keys.find("attention.causal");
  if (causal && !is_number(*causal, 1))
    keys.refuse("attention.causal", "is not true: a trace's mask is causal");
  if (const auto activation = keys.text("hidden_activation"); activation && *activation != "silu") {
    keys.refuse("hidden_activation", "is " + in_quotes(*activation) + "; expected silu");
  }
}

// 0 is llama.cpp's word for 1 / sqrt(head_dim), which it computes in single precision.
void require_usual_scale(const Keys& keys, int64_t head_dim) {
  const double scale = keys.real("attention.scale").value_or(0);
  const float usual = 1 / std::sqrt(static_cast<float>(head_dim));
  if (scale == 0 || static_cast<float>(scale) == usual) return;
  keys.refuse("attention.scale", "is " + std::to_string(scale) +
                                     ": another scale of logits than 1 / sqrt(head_dim) is not computed");
}

// The default of a scaling's type is linear, and that of its factor, which has an older name, 1; 0 is 1, too.
RopeConfig rope_of(const Keys& keys, ModelFamily family, int64_t head_dim) {
  RopeConfig rope;
  rope.pairing = family == ModelFamily::llama ? RopePairing::neighbours : RopePairing::halves;
  rope.base = keys.real("rope.freq_base").value_or(10000);
  if (const auto rotated = keys.count("rope.dimension_count"); rotated && *rotated != head_dim) {
    keys.refuse("rope.dimension_count",
                "is " + std::to_string(*rotated) + "; RoPE of part of a head is not computed");
  }
  const std::string type = keys.text("rope.scaling.type").value_or("linear");
  if (type == "linear") {
    const char* name = keys.find("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
    const double factor = keys.real(name).value_or(0);
    if (!(factor >= 0) || !std::isfinite(factor))
      keys.refuse(name, "is " + std::to_string(factor) + "; expected a positive number");
    if (factor != 0) rope.linear_factor = factor;
  } else if (type != "none") {
    keys.refuse("rope.scaling.type", "is " + in_quotes(type) + "; expected none or linear");
  }
  return rope;
}

// Files of other kinds, such as adapters, have an architecture, too.
void require_model(const GgufFile& file) {
  const auto type = file.metadata().find("general.type");
  const auto* text = type == file.metadata().end() ? nullptr : std::get_if<std::string>(&type->second.value);
  if (!text || *text == "model") return;
  throw TraceError(file.path(), type->second.offset, "general.type",
                   "is " + in_quotes(*text) + "; expected \"model\"");
}

}  // namespace

ModelConfig read_gguf_config(const GgufSet& files) {
  const GgufFile& file = files.first();
  require_model(file);
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
  const auto of_layers = [&](const char* key) {
    const std::optional<int64_t> found = keys.count_of_layers(key);
    if (!found) keys.refuse(key, "is missing");
    return *found;
  };
  config.query_heads = of_layers("attention.head_count");
  config.kv_heads = keys.count_of_layers("attention.head_count_kv").value_or(config.query_heads);
  const int64_t usual_head_dim = config.model_dim / config.query_heads;
  config.head_dim = keys.count("attention.key_length").value_or(usual_head_dim);
  if (const int64_t value_dim = keys.count("attention.value_length").value_or(usual_head_dim);
      value_dim != config.head_dim) {
    keys.refuse("attention.value_length", "differs from the keys' length: they are " +
                                              std::to_string(value_dim) + " and " +
                                              std::to_string(config.head_dim) + "; a trace has one head_dim");
  }
  require_usual_scale(keys, config.head_dim);
  config.feed_forward = of_layers("feed_forward_length");
  config.context = keys.count("context_length").value_or(0);
  const PlacedGgufTensor embedding = files.find("token_embd.weight");
  if (!embedding) throw TraceError(file.path(), -1, "token_embd.weight", "is missing");
  config.vocabulary = embedding.tensor->rows();
  const std::optional<double> epsilon = keys.real("attention.layer_norm_rms_epsilon");
  if (!epsilon) keys.refuse("attention.layer_norm_rms_epsilon", "is missing");
  config.norm_epsilon = *epsilon;
  config.rope = rope_of(keys, config.family, config.head_dim);
  config.tied_output = !files.find("output.weight");
  config.qk_norm = known->qk_norm;
  require_consistent(config, file.path());
  return config;
}

}  // namespace kvbound::traces
