// Runs a checkpoint on tokens, in single precision, and shows what every layer's attention worked on.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/view.hpp>

#include "causal_attention.hpp"
#include "checkpoint.hpp"
#include "decoder_blocks.hpp"

namespace kvbound::traces {

/// What one layer's attention worked on, for successive positions.
struct Attended {
  int64_t layer = 0;
  int64_t first = 0;         ///< position of the first row
  SingleMatrixView queries;  ///< [rows, query_heads * head_dim], after RoPE
  SingleMatrixView outputs;  ///< as queries, before W^O
};

class Decoder {
 public:
  /// Called after every layer.
  using Observer = std::function<void(const Attended&)>;

  /// checkpoint  outlives the object
  /// tokens      that will be run in all
  /// stored      queries, keys and values are rounded to this type before attention: F32, F16 or BF16
  Decoder(const Checkpoint& checkpoint, int64_t tokens, Dtype stored);

  /// Runs the next tokens. Memory grows with their number and with that of all
  /// tokens, not with their product.
  ///
  /// returns  the logits [vocabulary] of the token behind the last one
  /// throws   ShapeMismatch for a token that the vocabulary does not have, or more tokens than
  ///          were announced; NonFinite if a number overflows the stored type; TraceError and
  ///          IoError from reading weights
  std::vector<float> run(std::span<const int64_t> tokens, const Observer& observer);

  /// Tokens so far.
  int64_t position() const { return position_; }
  /// [kv_heads]: a layer's keys and values of all positions so far, rounded to the stored type.
  std::vector<CachedHead> cache(int64_t layer) const;

 private:
  struct LayerCache {
    std::vector<float> keys, values;  // [kv_heads, tokens, head_dim]
  };
  // Rows of all tokens that run together, but for keys and values, which are of a block of them.
  struct Rows {
    std::vector<float> hidden, queries, outputs, keys, values;
    std::vector<int64_t> positions;
  };

  void run_layer(int64_t layer, Rows& rows, const Observer& observer);
  void store(SingleMatrixView rows, int64_t first, std::vector<float>& cache) const;

  const ModelConfig& config_;
  DecoderBlocks blocks_;
  int64_t tokens_;
  int64_t position_ = 0;
  std::vector<LayerCache> caches_;
};

}  // namespace kvbound::traces
