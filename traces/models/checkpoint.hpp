// A model's checkpoint: its configuration, and its weights by what they do, whatever the file calls them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model_config.hpp"
#include "token_texts.hpp"
#include "weight.hpp"

namespace kvbound::traces {

class GgufSet;
class ShardSet;

/// Weights of one layer. Matrices are [outputs, inputs]: y = W x.
struct LayerWeights {
  Weight attention_norm;                                   ///< [1, model_dim]
  Weight query;                                            ///< [query_heads * head_dim, model_dim]
  Weight key, value;                                       ///< [kv_heads * head_dim, model_dim]
  Weight output;                                           ///< [model_dim, query_heads * head_dim]
  std::optional<Weight> query_bias, key_bias, value_bias;  ///< [1, rows of the matrix]
  std::optional<Weight> query_norm, key_norm;              ///< [1, head_dim]
  Weight feed_forward_norm;                                ///< [1, model_dim]
  Weight gate, up;                                         ///< [feed_forward, model_dim]
  Weight down;                                             ///< [model_dim, feed_forward]
};

class Checkpoint {
 public:
  /// Opens a GGUF file, the first part of a split one, or a folder with config.json and either
  /// model.safetensors or model.safetensors.index.json, whose weights are F32, F16 or BF16. No weight
  /// is decoded yet, unless a folder has two that should be equal: the embedding, and an output matrix
  /// that config.json ties to it.
  ///
  /// throws  TraceError for ill-formed files, other models (model_config.hpp), weights that are missing, of
  ///         another type or of another shape, and further tensors of a layer, the embedding or the output,
  ///         which may change what is computed; other tensors are ignored; IoError
  explicit Checkpoint(const std::string& path);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const ModelConfig& config() const { return config_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }
  const Weight& embedding() const { return embedding_; }      ///< [vocabulary, model_dim]
  const Weight& output_norm() const { return output_norm_; }  ///< [1, model_dim]
  const Weight& output() const { return output_; }  ///< [vocabulary, model_dim]; the embedding if it is tied
  /// [1, head_dim / 2]: by which RoPE's frequencies are divided, where the file says so
  const std::optional<Weight>& rope_divisors() const { return rope_divisors_; }
  /// The texts of its tokens; nullopt if it has no tokenizer, or one that is not known here. Of a vocabulary
  /// of 256 without a tokenizer, tokens are bytes. Throws TraceError for an ill-formed tokenizer, IoError.
  std::optional<TokenTexts> token_texts() const;
  /// All files that are read, but for a tokenizer's.
  std::vector<std::string> paths() const;

 private:
  class Finder;

  void open_folder(const std::string& path);
  void find_weights();
  LayerWeights layer_weights(Finder& finder, int64_t layer) const;
  void require_tied(Finder& finder) const;

  std::string path_;
  std::unique_ptr<GgufSet> gguf_;  // one of the two is null
  std::unique_ptr<ShardSet> shards_;
  ModelConfig config_;
  std::vector<LayerWeights> layers_;
  Weight embedding_, output_norm_, output_;
  std::optional<Weight> rope_divisors_;
};

}  // namespace kvbound::traces
