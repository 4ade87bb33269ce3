// What a checkpoint's configuration says about a decoder of the Llama family, and what of
// it a trace can represent.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvbound::traces {

/// Counts and dimensions of checkpoints are at most so large, so that products of two fit int64_t.
inline constexpr int64_t kMostDimension = INT32_MAX;

/// Families that differ in what a layer has beside the common parts: qwen2 biases of query, key and value,
/// qwen3 RMS norms of every head's query and key. Mistral without a sliding window is a llama.
enum class ModelFamily { llama, qwen2, qwen3 };

struct ModelFamilyTraits {
  ModelFamily family;
  std::string_view name;
  bool qkv_bias;  ///< whether query, key and value have biases whatever the configuration says
  bool qk_norm;
};
inline constexpr std::array<ModelFamilyTraits, 3> kModelFamilies{{
    {ModelFamily::llama, "llama", false, false},
    {ModelFamily::qwen2, "qwen2", true, false},
    {ModelFamily::qwen3, "qwen3", false, true},
}};
constexpr const ModelFamilyTraits& traits(ModelFamily family) {
  return kModelFamilies[static_cast<size_t>(family)];
}

/// Which two of a head's numbers RoPE rotates together: i and i + head_dim / 2, or 2i and 2i + 1.
enum class RopePairing { halves, neighbours };

/// How the angles of Llama 3.1 differ from those of a base alone: frequencies below low / original_context
/// are divided by `factor`, those above high / original_context are kept, and those between are interpolated.
struct Llama3Scaling {
  double factor = 1, low = 1, high = 4;
  int64_t original_context = 0;
  friend bool operator==(const Llama3Scaling&, const Llama3Scaling&) = default;
};

struct RopeConfig {
  double base = 10000;
  RopePairing pairing = RopePairing::halves;
  double linear_factor = 1;  ///< positions are divided by it
  std::optional<Llama3Scaling> llama3;
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::llama;
  std::string name;  ///< as the file says; of a folder that does not say, the folder's
  int64_t layers = 0, model_dim = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
  int64_t feed_forward = 0;  ///< width of the gated feed-forward block
  int64_t vocabulary = 0;
  int64_t context = 0;  ///< tokens that the model was made for
  double norm_epsilon = 1e-5;
  RopeConfig rope;
  bool tied_output = false;  ///< logits are formed with the embedding's rows
  bool qk_norm = false;
  std::optional<bool> qkv_bias;  ///< whether query, key and value have biases; none: those that the file has
};

/// Throws TraceError, naming the field of `path`, if heads, dimensions or RoPE contradict each other.
void require_consistent(const ModelConfig& config, const std::string& path);

}  // namespace kvbound::traces
