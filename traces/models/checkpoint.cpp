#include "checkpoint.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include <kvbound/reference/core/error.hpp>

#include "../file_format.hpp"
#include "../messages.hpp"
#include "../number_in.hpp"
#include "../shards.hpp"
#include "gguf_config.hpp"
#include "gguf_set.hpp"
#include "hugging_face_config.hpp"

namespace kvbound::traces {
namespace {

// What a weight is called in a GGUF file and in a Hugging Face checkpoint, behind the
// layer's or the model's prefix.
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
    kEmbedding{"token_embd.weight", "embed_tokens.weight"}, kFinalNorm{"output_norm.weight", "norm.weight"},
    kUnembedding{"output.weight", "lm_head.weight"};

constexpr int64_t kMostHeaderBytes = 100'000'000;  // as the safetensors library has it

std::optional<WeightFormat> format_of(Dtype dtype) {
  if (dtype == Dtype::f32) return WeightFormat::f32;
  if (dtype == Dtype::f16) return WeightFormat::f16;
  if (dtype == Dtype::bf16) return WeightFormat::bf16;
  return std::nullopt;
}

constexpr const char* kExpected =
    "expected a GGUF file, or a folder that holds config.json and model.safetensors or its shards";

[[noreturn]] void refuse_missing(const std::string& path, const std::string& instead) {
  throw IoError(io_error("open", path, ENOENT).what() + instead + "; " + kExpected);
}

// Whether a path that does not exist may be meant as a name on the Hugging Face hub, OWNER/NAME.
bool may_be_of_hub(const std::filesystem::path& path) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./";
  const std::string text = path.string();
  return std::ranges::count(text, '/') == 1 && text.find_first_not_of(kAllowed) == std::string::npos &&
         !text.starts_with('.') && path.has_filename() && path.has_parent_path() && path.is_relative() &&
         path.extension() != ".gguf" && path.extension() != ".safetensors" &&
         !std::filesystem::exists(path.parent_path());
}

void require_gguf(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    const std::string name = std::filesystem::path(path).filename().string();
    refuse_missing(path, may_be_of_hub(path) ? "; from the Hugging Face hub `hf download " + path +
                                                   " --local-dir " + name + "` fetches it into ./" + name
                                             : "");
  }
  const std::string format = apparent_format(InputFile(path));
  if (format.empty() || format == "a GGUF file") return;
  throw TraceError(path, 0, "", "is " + format + "; " + kExpected);
}

// Requires a file of a folder; if it is missing, says what the folder holds.
void require_file(const std::filesystem::path& file) {
  if (std::filesystem::exists(std::filesystem::symlink_status(file))) return;
  constexpr auto kEndings = std::to_array<std::string_view>(
      {".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".npz", ".json"});
  std::set<std::pair<std::ptrdiff_t, std::string>> found;  // in the order of the endings
  for (const auto& entry : std::filesystem::directory_iterator(file.parent_path())) {
    const auto* ending = std::ranges::find(kEndings, entry.path().extension().string());
    if (ending != kEndings.end()) found.emplace(ending - kEndings.begin(), entry.path().filename().string());
  }
  const std::string others = found.size() > 1 ? " and " + std::to_string(found.size() - 1) + " more" : "";
  refuse_missing(file.string(), found.empty()
                                    ? "; the folder holds no model"
                                    : "; the folder holds " + printable(found.begin()->second) + others);
}

// transformers loads an adapter that is in a model's folder, too.
void refuse_adapter(const std::filesystem::path& folder) {
  const auto adapter = folder / "adapter_config.json";
  if (!std::filesystem::exists(adapter)) return;
  throw TraceError(adapter.string(), -1, "",
                   "is there: an adapter is not computed; merge it into the model's weights");
}

// A bias that is 0 changes nothing.
void require_zero(const Weight& bias) {
  std::vector<float> numbers(static_cast<size_t>(bias.cols));
  bias.read(0, numbers);
  if (std::ranges::all_of(numbers, [](float number) { return number == 0; })) return;
  throw TraceError(bias.file->path(), -1, printable(bias.name),
                   "is not 0: a trace cannot represent a bias of W^O");
}

}  // namespace

// Finds weights by name, and checks their shapes. What is missing is said last, so that other names
// than expected come first.
class Checkpoint::Finder {
 public:
  explicit Finder(const Checkpoint& checkpoint)
      : gguf_(checkpoint.gguf_.get()),
        shards_(checkpoint.shards_.get()),
        layers_(checkpoint.config_.layers),
        body_(gguf_ || (!has("model.embed_tokens.weight") && has("embed_tokens.weight")) ? "" : "model.") {}

  bool has(std::string_view name) const { return shards_ && shards_->find(name); }

  std::string name_of(const WeightName& name) const {
    return std::string(gguf_ ? name.gguf : name.hugging_face);
  }
  // The name of a weight outside the layers: of the embedding and the last norm.
  std::string body_name(const WeightName& name) const { return body_ + name_of(name); }
  std::string name_of(int64_t layer, const WeightName& name) const {
    return (gguf_ ? "blk." : body_ + "layers.") + std::to_string(layer) + "." + name_of(name);
  }

  std::optional<Weight> find(const std::string& name, int64_t rows, int64_t cols) {
    known_.insert(name);
    const std::optional<Weight> weight = gguf_ ? in_gguf(name) : in_shards(name);
    if (!weight || (weight->rows == rows && weight->cols == cols)) return weight;
    throw TraceError(weight->file->path(), -1, printable(name),
                     "is [" + std::to_string(weight->rows) + ", " + std::to_string(weight->cols) +
                         "]; expected [" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
  }
  // An empty weight if it is missing, which finish() refuses.
  Weight require(const std::string& name, int64_t rows, int64_t cols) {
    std::optional<Weight> weight = find(name, rows, cols);
    if (!weight && missing_.empty()) missing_ = name;
    return weight.value_or(Weight{});
  }
  // Refuses tensors that were not asked for though they are part of what is computed,
  // then those that are missing.
  void finish() const {
    if (gguf_) {
      for (const auto& [name, placed] : gguf_->tensors()) {
        refuse_unknown(std::string(name), placed.file->path(), placed.tensor->header_offset);
      }
    } else {
      for (const auto& [name, stored] : shards_->tensors()) {
        refuse_unknown(std::string(name), stored.file->path(), stored.entry->header_offset);
      }
    }
    if (missing_.empty()) return;
    throw TraceError(gguf_ ? gguf_->first().path() : shards_->path(), -1, printable(missing_), "is missing");
  }

 private:
  void refuse_unknown(const std::string& name, const std::string& path, int64_t offset) const {
    if (known_.contains(name) || !is_computed(name)) return;
    throw TraceError(path, offset, printable(name),
                     "is unknown here, and may change what is computed; expected no such tensor");
  }
  // Whether a tensor belongs to a layer, the embedding or the output. Frequencies of RoPE, which some files
  // have for each layer, are computed from the configuration.
  bool is_computed(std::string_view name) const {
    if (name.ends_with(".rotary_emb.inv_freq") || name.find(".attn_rot_embd") != name.npos) return false;
    if (gguf_) {
      constexpr std::array kPrefixes{"blk.", "token_embd", "token_types", "position_embd", "output", "rope_"};
      return std::ranges::any_of(kPrefixes, [&](const char* prefix) { return name.starts_with(prefix); });
    }
    if (name.starts_with("lm_head.")) return true;
    if (!name.starts_with(body_)) return false;
    const std::string_view rest = name.substr(body_.size());
    constexpr std::string_view kLayers = "layers.";
    if (!rest.starts_with(kLayers)) return rest.starts_with("embed_tokens.") || rest.starts_with("norm.");
    // Layers behind the last one predict further tokens, and are not part of the model itself.
    const std::string_view layer =
        rest.substr(kLayers.size(), rest.find('.', kLayers.size()) - kLayers.size());
    const auto number = number_in<int64_t>(layer);
    return !number || *number < layers_;
  }

  std::optional<Weight> in_gguf(const std::string& name) const {
    const PlacedGgufTensor placed = gguf_->find(name);
    if (!placed) return std::nullopt;
    return placed.file->weight(*placed.tensor);
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

  const GgufSet* gguf_;
  const ShardSet* shards_;
  int64_t layers_;
  std::string
      body_;  // prefix of all names but the output's: of a whole model "model.", of its body alone none
  std::set<std::string, std::less<>> known_;
  std::string missing_;
};

Checkpoint::Checkpoint(const std::string& path) : path_(path) {
  if (std::filesystem::is_directory(path)) {
    open_folder(path);
  } else {
    require_gguf(path);
    gguf_ = std::make_unique<GgufSet>(path);
    config_ = read_gguf_config(*gguf_);
  }
  find_weights();
}

Checkpoint::~Checkpoint() = default;

void Checkpoint::open_folder(const std::string& path) {
  const std::filesystem::path folder(path);
  const auto config = folder / "config.json", whole = folder / "model.safetensors",
             index = folder / "model.safetensors.index.json";
  require_file(config);
  refuse_adapter(folder);
  config_ = read_hugging_face_config(config.string());
  const bool sharded = !std::filesystem::exists(whole) && std::filesystem::exists(index);
  if (!sharded) require_file(whole);
  shards_ = std::make_unique<ShardSet>((sharded ? index : whole).string(), kMostHeaderBytes,
                                       ShardSet::Kind::checkpoint);
}

std::optional<TokenTexts> Checkpoint::token_texts() const {
  const auto tokenizer = std::filesystem::path(path_) / "tokenizer.json";
  const bool in_folder = !gguf_ && std::filesystem::exists(tokenizer);
  auto texts = gguf_       ? traces::token_texts(gguf_->first())
               : in_folder ? traces::token_texts(tokenizer.string(), config_.vocabulary)
                           : std::nullopt;
  constexpr int64_t kBytes = 256;
  if (!texts && !in_folder && config_.vocabulary == kBytes)
    texts.emplace(TokenSpelling::bytes, std::vector<std::string>());
  return texts;
}

LayerWeights Checkpoint::layer_weights(Finder& finder, int64_t layer) const {
  const ModelConfig& c = config_;
  const int64_t queries = c.query_heads * c.head_dim, keys = c.kv_heads * c.head_dim;
  const auto vector = [&](const WeightName& name, int64_t size) {
    return finder.require(finder.name_of(layer, name), 1, size);
  };
  const auto matrix = [&](const WeightName& name, int64_t rows, int64_t cols) {
    return finder.require(finder.name_of(layer, name) + ".weight", rows, cols);
  };
  const auto bias = [&](const WeightName& name, int64_t size) -> std::optional<Weight> {
    const std::string tensor = finder.name_of(layer, name) + ".bias";
    if (!c.qkv_bias) return finder.find(tensor, 1, size);
    return *c.qkv_bias ? std::optional(finder.require(tensor, 1, size)) : std::nullopt;
  };
  const auto head_norm = [&](const WeightName& name) -> std::optional<Weight> {
    if (!c.qk_norm) return std::nullopt;
    return vector(name, c.head_dim);
  };
  if (const auto found = finder.find(finder.name_of(layer, kOutput) + ".bias", 1, c.model_dim))
    require_zero(*found);
  return {.attention_norm = vector(kAttentionNorm, c.model_dim),
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
          .down = matrix(kDown, c.model_dim, c.feed_forward)};
}

void Checkpoint::find_weights() {
  Finder finder(*this);
  const ModelConfig& c = config_;
  const size_t tensors = gguf_ ? gguf_->tensors().size() : shards_->tensors().size();
  // Before they are looked for, one after the other: a configuration may say anything.
  if (std::cmp_greater(c.layers, tensors)) {
    throw TraceError(path_, -1, "",
                     "has " + std::to_string(c.layers) + " layers, as its configuration says, and only " +
                         std::to_string(tensors) + " tensors; expected several of each layer");
  }
  for (int64_t l = 0; l < c.layers; ++l) layers_.push_back(layer_weights(finder, l));
  // Of two equal tensors some writers keep one, not always the embedding.
  const bool output_alone = c.tied_output && !gguf_ && !finder.has(finder.body_name(kEmbedding)) &&
                            finder.has(finder.name_of(kUnembedding));
  embedding_ = finder.require(output_alone ? finder.name_of(kUnembedding) : finder.body_name(kEmbedding),
                              c.vocabulary, c.model_dim);
  output_norm_ = finder.require(finder.body_name(kFinalNorm), 1, c.model_dim);
  if (c.tied_output) {
    if (!output_alone) require_tied(finder);
    output_ = embedding_;
  } else {
    output_ = finder.require(finder.name_of(kUnembedding), c.vocabulary, c.model_dim);
  }
  if (gguf_ && c.family == ModelFamily::llama) {
    rope_divisors_ = finder.find("rope_freqs.weight", 1, c.head_dim / 2);
  }
  finder.finish();
}

// Versions of transformers differ in which of the two they use.
void Checkpoint::require_tied(Finder& finder) const {
  const ModelConfig& c = config_;
  const std::optional<Weight> own = finder.find(finder.name_of(kUnembedding), c.vocabulary, c.model_dim);
  if (!own || !embedding_.file) return;
  const int64_t most = std::max<int64_t>(1, (int64_t{1} << 20) / c.model_dim);  // rows at a time
  for (int64_t row = 0; row < c.vocabulary; row += most) {
    const int64_t rows = std::min(most, c.vocabulary - row);
    std::vector<float> one(static_cast<size_t>(rows * c.model_dim)), other(one.size());
    own->read(row, one);
    embedding_.read(row, other);
    if (one == other) continue;
    throw TraceError(
        (std::filesystem::path(path_) / "config.json").string(), -1, "tie_word_embeddings",
        "is true, but " + own->name + " differs from the embedding; expected equal numbers, or false");
  }
}

std::vector<std::string> Checkpoint::paths() const {
  if (gguf_) return gguf_->paths();
  std::vector<std::string> paths = shards_->paths();
  paths.push_back((std::filesystem::path(path_) / "config.json").string());
  return paths;
}

}  // namespace kvbound::traces
