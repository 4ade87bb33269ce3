// Traces: a recorded prompt and its decode steps, read strictly and one layer at a time. Format, byte
// by byte: traces/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/core/view.hpp>

#include "cache_heads.hpp"

namespace kvbound::traces {

class ShardSet;

/// A trace's metadata and the optional tensors that it has.
struct TraceInfo {
  std::string path;
  std::string model;
  std::string source;
  CacheHeads heads = CacheHeads::kv;  ///< which heads have a cache
  LayerShape shape;                   ///< its KV heads are those that have one
  int64_t recorded_kv_heads = 0;      ///< those of the model
  int64_t layers = 0;
  std::vector<int64_t> model_layers;  ///< [layers] the model's own numbers, ascending; empty if not recorded
  int64_t prompt_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t window_queries = 0;         ///< recorded prompt queries, 1..prompt_tokens
  double scale = 1;                   ///< logits are scale * query . key
  Dtype storage = Dtype::f32;         ///< type of the keys
  bool has_attention_output = false;  ///< whether every layer has one
  bool has_tokens = false;

  /// The model's own number of a layer, 0 <= layer < layers, by which people are told of it; its number in
  /// the trace if the model's was not recorded.
  int64_t layer_number(int64_t layer) const {
    return model_layers.empty() ? layer : model_layers[static_cast<size_t>(layer)];
  }
};

/// [layers] the numbers of all layers, ascending.
std::vector<int64_t> layer_numbers(const TraceInfo& info);

/// One layer's tensors, widened to double.
struct Layer {
  int64_t index = 0;  ///< the layer's number in its trace; seeds draws only
  LayerShape shape;
  double scale = 1;
  int64_t prompt_tokens = 0;
  int64_t window_queries = 0;
  Tensor keys;                             ///< [kv_heads, n + T, head_dim]
  Tensor values;                           ///< [kv_heads, n + T, head_dim]
  Tensor queries;                          ///< [query_heads, window_queries + T, head_dim]
  Matrix output_projection;                ///< [query_heads * head_dim, model_dim]
  std::optional<Tensor> attention_output;  ///< as queries
  Dtype attention_output_storage = Dtype::f32;
  /// Bits of 16-bit tensors of the trace's storage type, if they were asked for; others are empty.
  struct Bits {
    using Numbers = std::vector<uint16_t, kvbound::detail::NumberAllocator<uint16_t>>;
    Dtype dtype = Dtype::f64;
    Numbers keys, values, queries, output_projection;
  } bits = {};

  /// The layer at the end of its prompt.
  LayerView prompt() const;
  /// Decode step t, 0 <= t < T.
  StepView step(int64_t t) const;
};

/// The layer with a cache for every query head: shape, keys, values and their bits.
Layer with_query_head_caches(Layer layer);

class Trace {
 public:
  struct Options {
    int64_t header_limit = int64_t{16} << 20;  ///< largest JSON header accepted, in bytes
    CacheHeads heads = CacheHeads::kv;         ///< which heads have a cache: TraceInfo::shape, Layer
  };
  struct Also {
    bool attention_output = false;  ///< the model's own, if it was recorded
    bool bits = false;              ///< Layer::bits, a quarter more memory
  };
  /// Called with the bytes done, and the total.
  using Progress = std::function<void(int64_t, int64_t)>;

  /// Opens a .safetensors file or a *.index.json with its shards, and checks everything that can be
  /// checked without reading the numbers. Throws TraceError for a file that is not a trace, IoError for
  /// one that cannot be opened.
  explicit Trace(const std::string& path) : Trace(path, Options{}) {}
  Trace(const std::string& path, const Options& options);
  ~Trace();
  Trace(Trace&&) noexcept;
  Trace& operator=(Trace&&) noexcept;

  const TraceInfo& info() const { return info_; }
  /// All files that are read: the single file, or the index and its shards.
  std::vector<std::string> paths() const;

  /// Reads one layer. Throws TraceError if the file was truncated after it was opened, or a
  /// number is NaN or infinite.
  ///
  /// also  what it has besides the views of prompt() and step()
  Layer read_layer(int64_t layer) const { return read_layer(layer, Also{}); }
  Layer read_layer(int64_t layer, const Also& also) const;

  /// [n + T] token ids; empty if they were not recorded.
  std::vector<int64_t> tokens() const;

  /// SHA-256 of the file, in hexadecimal; for a sharded trace, of the index file's bytes followed by each
  /// shard's, in ascending order of the shards' names.
  std::string sha256(const Progress& progress = {}) const;

 private:
  std::unique_ptr<ShardSet> files_;
  TraceInfo info_;
};

}  // namespace kvbound::traces
