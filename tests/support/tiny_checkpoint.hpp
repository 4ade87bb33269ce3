// A small random model of the Llama family as a checkpoint.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <kvbound/traces/models/checkpoint.hpp>
#include <kvbound/traces/portable_random.hpp>

#include "support/gguf_bytes.hpp"

namespace kvbound::test {

/// 2 layers, 4 query heads on 2 KV heads, head_dim 4, model_dim 16, 32 tokens, F32.
class TinyCheckpoint {
 public:
  using Change = std::function<void(GgufParts&)>;

  /// change  of the file before it is written
  explicit TinyCheckpoint(uint64_t seed = 1, const Change& change = {})
      : random_(seed), path_(folder_.write("tiny.gguf", bytes(change))) {}

  traces::Checkpoint open() const { return traces::Checkpoint(path_); }

  static constexpr int64_t kLayers = 2, kVocabulary = 32;

 private:
  static constexpr uint64_t kModelDim = 16, kFeedForward = 24, kQueryRows = 16, kKeyRows = 8;

  std::string bytes(const Change& change) {
    GgufParts parts;
    parts.set("general.architecture", std::string("llama"));
    parts.set("general.name", std::string("tiny"));
    for (const auto& [key, value] :
         std::vector<std::pair<std::string, uint32_t>>{{"block_count", kLayers},
                                                       {"embedding_length", kModelDim},
                                                       {"feed_forward_length", kFeedForward},
                                                       {"attention.head_count", 4},
                                                       {"attention.head_count_kv", 2},
                                                       {"attention.key_length", 4},
                                                       {"attention.value_length", 4},
                                                       {"rope.dimension_count", 4},
                                                       {"context_length", 512}})
      parts.set("llama." + key, value);
    parts.set("llama.rope.freq_base", 5000.0F);
    parts.set("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    add(parts, "token_embd.weight", kVocabulary, kModelDim, 1);
    for (int64_t l = 0; l < kLayers; ++l) {
      const std::string layer = "blk." + std::to_string(l) + ".";
      add(parts, layer + "attn_norm.weight", 1, kModelDim, 0);
      add(parts, layer + "attn_q.weight", kQueryRows, kModelDim, 0.6);
      add(parts, layer + "attn_k.weight", kKeyRows, kModelDim, 0.6);
      add(parts, layer + "attn_v.weight", kKeyRows, kModelDim, 0.4);
      add(parts, layer + "attn_output.weight", kModelDim, kQueryRows, 0.4);
      add(parts, layer + "ffn_norm.weight", 1, kModelDim, 0);
      add(parts, layer + "ffn_gate.weight", kFeedForward, kModelDim, 0.3);
      add(parts, layer + "ffn_up.weight", kFeedForward, kModelDim, 0.3);
      add(parts, layer + "ffn_down.weight", kModelDim, kFeedForward, 0.3);
    }
    add(parts, "output_norm.weight", 1, kModelDim, 0);
    add(parts, "output.weight", kVocabulary, kModelDim, 0.5);
    if (change) change(parts);
    return parts.bytes();
  }

  // A matrix of random numbers; a vector of ones if `spread` is 0.
  void add(GgufParts& parts, const std::string& name, uint64_t rows, uint64_t cols, double spread) {
    std::string data;
    for (uint64_t i = 0; i < rows * cols; ++i)
      data += bytes_of(spread == 0 ? 1.0F : static_cast<float>(spread * random_.normal(next_++)));
    std::vector<uint64_t> dimensions{cols};
    if (rows > 1) dimensions.push_back(rows);
    parts.tensors.push_back({name, dimensions, 0, data});
  }

  traces::Stream random_;
  uint64_t next_ = 0;
  TemporaryFolder folder_;
  std::string path_;
};

}  // namespace kvbound::test
