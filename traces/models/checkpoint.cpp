#include "checkpoint.hpp"

#include <filesystem>
#include <string_view>

#include <kvbound/reference/core/error.hpp>

#include "../messages.hpp"
#include "../shards.hpp"
#include "gguf.hpp"
#include "gguf_config.hpp"
#include "hugging_face_config.hpp"

namespace kvbound::traces {
namespace {

// What a weight is called in a GGUF file and in a Hugging Face checkpoint, behind the layer's prefix.
struct WeightName {
  std::string_view gguf, hugging_face;
};
constexpr WeightName kAttentionNorm{"attn_norm.weight", "input_layernorm.weight"},
    kQuery{"attn_q", "self_attn.q_proj"}, kKey{"attn_k", "self_attn.k_proj"},
    kValue{"attn_v", "self_attn.v_proj"}, kOutput{"attn_output", "self_attn.o_proj"},
    kQueryNorm{"attn_q_norm.weight", "self_attn.q_norm.weight"},
    kKeyNorm{"attn_k_norm.weight", "self_attn.k_norm.weight"},
    kFeedForwardNorm{"ffn_norm.weight", "post_attention_layernorm.weight"},
    kGate{"ffn_gate", "mlp.gate_proj"}, kUp{"ffn_up", "mlp.up_proj"}, kDown{"ffn_down", "mlp.down_proj"},
    kEmbedding{"token_embd.weight", "model.embed_tokens.weight"},
    kFinalNorm{"output_norm.weight", "model.norm.weight"}, kUnembedding{"output.weight", "lm_head.weight"};

std::optional<WeightFormat> format_of(Dtype dtype) {
  if (dtype == Dtype::f32) return WeightFormat::f32;
  if (dtype == Dtype::f16) return WeightFormat::f16;
  if (dtype == Dtype::bf16) return WeightFormat::bf16;
  return std::nullopt;
}

}  // namespace

// Finds weights by name, and checks their shapes.
class Checkpoint::Finder {
 public:
  explicit Finder(const Checkpoint& checkpoint)
      : gguf_(checkpoint.gguf_.get()), shards_(checkpoint.shards_.get()) {}

  std::string name_of(const WeightName& name) const {
    return std::string(gguf_ ? name.gguf : name.hugging_face);
  }
  std::string name_of(int64_t layer, const WeightName& name) const {
    return (gguf_ ? "blk." : "model.layers.") + std::to_string(layer) + "." + name_of(name);
  }

  std::optional<Weight> find(const std::string& name, int64_t rows, int64_t cols) const {
    const std::optional<Weight> weight = gguf_ ? in_gguf(name) : in_shards(name);
    if (!weight || (weight->rows == rows && weight->cols == cols)) return weight;
    throw TraceError(weight->file->path(), -1, printable(name),
                     "is [" + std::to_string(weight->rows) + ", " + std::to_string(weight->cols) +
                         "]; expected [" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
  }
  Weight require(const std::string& name, int64_t rows, int64_t cols) const {
    std::optional<Weight> weight = find(name, rows, cols);
    if (!weight) throw TraceError(gguf_ ? gguf_->path() : shards_->path(), -1, printable(name), "is missing");
    return *std::move(weight);
  }

 private:
  std::optional<Weight> in_gguf(const std::string& name) const {
    const GgufTensor* tensor = gguf_->find(name);
    if (!tensor) return std::nullopt;
    return gguf_->weight(*tensor);
  }
  std::optional<Weight> in_shards(const std::string& name) const {
    const StoredTensor stored = shards_->find(name);
    if (!stored) return std::nullopt;
    const TensorEntry& entry = *stored.entry;
    const std::string& path = stored.file->path();
    const std::optional<WeightFormat> format = format_of(entry.dtype);
    if (!format) {
      throw TraceError(path, entry.header_offset, printable(name),
                       "is " + std::string(kvbound::name(entry.dtype)) + "; expected F32, F16 or BF16");
    }
    if (entry.shape.empty() || entry.shape.size() > 2) {
      throw TraceError(path, entry.header_offset, printable(name),
                       "has shape " + shape_text(entry.shape) + "; expected a vector or a matrix");
    }
    const int64_t rows = entry.shape.size() == 2 ? entry.shape[0] : 1;
    return Weight{&stored.file->file(), name, *format, rows, entry.shape.back(), entry.begin};
  }

  const GgufFile* gguf_;
  const ShardSet* shards_;
};

Checkpoint::Checkpoint(const std::string& path) : path_(path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    open_folder(path);
  } else {
    gguf_ = std::make_unique<GgufFile>(path);
    config_ = read_gguf_config(*gguf_);
  }
  find_weights();
}

Checkpoint::~Checkpoint() = default;

void Checkpoint::open_folder(const std::string& path) {
  const std::filesystem::path folder(path);
  config_ = read_hugging_face_config((folder / "config.json").string());
  const auto whole = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  std::error_code ignored;
  const bool sharded = !std::filesystem::exists(whole, ignored) && std::filesystem::exists(index, ignored);
  shards_ = std::make_unique<ShardSet>((sharded ? index : whole).string(), kDefaultHeaderLimit);
}

void Checkpoint::find_weights() {
  const Finder finder(*this);
  const ModelConfig& c = config_;
  const int64_t queries = c.query_heads * c.head_dim, keys = c.kv_heads * c.head_dim;
  for (int64_t l = 0; l < c.layers; ++l) {
    const auto vector = [&](const WeightName& name, int64_t size) {
      return finder.require(finder.name_of(l, name), 1, size);
    };
    const auto matrix = [&](const WeightName& name, int64_t rows, int64_t cols) {
      return finder.require(finder.name_of(l, name) + ".weight", rows, cols);
    };
    const auto bias = [&](const WeightName& name, int64_t size) -> std::optional<Weight> {
      if (!c.qkv_bias) return std::nullopt;
      return finder.require(finder.name_of(l, name) + ".bias", 1, size);
    };
    const auto head_norm = [&](const WeightName& name) -> std::optional<Weight> {
      if (!c.qk_norm) return std::nullopt;
      return vector(name, c.head_dim);
    };
    if (finder.find(finder.name_of(l, kOutput) + ".bias", 1, c.model_dim)) {
      throw TraceError(path_, -1, finder.name_of(l, kOutput) + ".bias",
                       "is there: a trace cannot represent a bias of W^O");
    }
    layers_.push_back({.attention_norm = vector(kAttentionNorm, c.model_dim),
                       .query = matrix(kQuery, queries, c.model_dim),
                       .key = matrix(kKey, keys, c.model_dim),
                       .value = matrix(kValue, keys, c.model_dim),
                       .output = matrix(kOutput, c.model_dim, queries),
                       .query_bias = bias(kQuery, queries),
                       .key_bias = bias(kKey, keys),
                       .value_bias = bias(kValue, keys),
                       .query_norm = head_norm(kQueryNorm),
                       .key_norm = head_norm(kKeyNorm),
                       .feed_forward_norm = vector(kFeedForwardNorm, c.model_dim),
                       .gate = matrix(kGate, c.feed_forward, c.model_dim),
                       .up = matrix(kUp, c.feed_forward, c.model_dim),
                       .down = matrix(kDown, c.model_dim, c.feed_forward)});
  }
  embedding_ = finder.require(finder.name_of(kEmbedding), c.vocabulary, c.model_dim);
  output_norm_ = finder.require(finder.name_of(kFinalNorm), 1, c.model_dim);
  output_ =
      c.tied_output ? embedding_ : finder.require(finder.name_of(kUnembedding), c.vocabulary, c.model_dim);
  if (gguf_) rope_divisors_ = finder.find("rope_freqs.weight", 1, c.head_dim / 2);
}

std::vector<std::string> Checkpoint::paths() const {
  if (gguf_) return {gguf_->path()};
  std::vector<std::string> paths = shards_->paths();
  paths.push_back((std::filesystem::path(path_) / "config.json").string());
  return paths;
}

}  // namespace kvbound::traces
