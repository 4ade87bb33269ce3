// The tokens that a task's model reads with the full cache, before compression.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/traces/models/decoder.hpp>
#include <kvbound/traces/trace.hpp>

#include "lockstep.hpp"

namespace kvbound::sim {

/// Holds the prompt's keys and values of all layers, and the queries of its last tokens.
class Prefill {
 public:
  /// checkpoint  outlives the object
  /// tokens      the prompt, n >= 1
  /// window      last tokens whose queries are kept, 1..n
  /// stored      queries, keys and values are rounded to this type
  /// advance     called after every layer with n; may be empty
  /// throws      as traces::Decoder::run
  Prefill(const traces::Checkpoint& checkpoint, std::span<const int64_t> tokens, int64_t window, Dtype stored,
          const std::function<void(int64_t)>& advance);

  /// [vocabulary]: of the token behind the prompt.
  const std::vector<float>& logits() const { return logits_; }

  /// A layer as a trace has it that records the prompt and these decode steps. Throws TraceError and
  /// IoError from reading W^O.
  ///
  /// steps  of the heads that have a cache: the model's KV heads, or every query head
  traces::Layer layer(int64_t index, const DecodeSteps& steps) const;

 private:
  SingleMatrixView queries(int64_t layer) const;

  const traces::Checkpoint& checkpoint_;
  const traces::ModelConfig& config_;
  traces::Decoder decoder_;
  int64_t window_;
  std::vector<std::vector<float>> queries_;  // [layers] of [window, query_heads * head_dim]
  std::vector<float> logits_;
};

}  // namespace kvbound::sim
