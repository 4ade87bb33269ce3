// A decoder's operations besides attention, on rows of hidden states whose tokens may stand at any positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/view.hpp>

#include "checkpoint.hpp"
#include "rope.hpp"

namespace kvbound::traces {

/// What a layer's attention works on, a row per token.
struct AttentionInputs {
  MutableSingleMatrixView queries;       ///< [rows, query_heads * head_dim], after RoPE
  MutableSingleMatrixView keys, values;  ///< [rows, kv_heads * head_dim]; keys after RoPE
};

/// In single precision. A row's results depend on that row, on its piece's size and its place in it
/// (below), and on nothing else.
class DecoderBlocks {
 public:
  /// checkpoint  outlives the object
  /// stored      queries, keys and values are rounded to this type: F32, F16 or BF16
  /// piece       rows that are multiplied by a weight at a time. A product's last bits may depend on a
  ///             row's place among the rows that it is multiplied with: equal pieces have equal
  ///             results, wherever they stand
  DecoderBlocks(const Checkpoint& checkpoint, Dtype stored, int64_t piece);

  /// hidden  [tokens, model_dim]
  /// throws  ShapeMismatch for a token that the vocabulary does not have; TraceError and IoError from reading
  ///         weights, as all functions below
  void embed(std::span<const int64_t> tokens, MutableSingleMatrixView hidden) const;
  /// A layer's attention inputs.
  ///
  /// hidden     [rows, model_dim]
  /// positions  [rows], for RoPE
  /// throws     NonFinite, naming layer and tensor, if a number does not fit the stored type
  void project(int64_t layer, SingleMatrixView hidden, std::span<const int64_t> positions,
               const AttentionInputs& inputs);
  /// The rest of the layer: W^O, residual connection and feed-forward block.
  ///
  /// outputs  [rows, query_heads * head_dim] of attention
  /// hidden   [rows, model_dim]: before and after the layer
  void finish(int64_t layer, SingleMatrixView outputs, MutableSingleMatrixView hidden);
  /// The logits of the tokens behind the rows.
  ///
  /// hidden  [rows, model_dim] behind the last layer
  /// logits  [rows, vocabulary]
  /// piece   as above, of these rows
  void unembed(SingleMatrixView hidden, MutableSingleMatrixView logits, int64_t piece);

 private:
  // A matrix that grows with the number of rows asked for.
  struct Scratch {
    int64_t cols;
    std::vector<float> numbers = {};
    MutableSingleMatrixView of(int64_t rows);
  };

  void normalise_heads(const Weight& norm, MutableSingleMatrixView rows) const;
  void rotate_heads(MutableSingleMatrixView rows, std::span<const int64_t> positions) const;
  void feed_forward(const LayerWeights& weights, MutableSingleMatrixView hidden);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  Rope rope_;
  Dtype stored_;
  int64_t piece_;
  Scratch normed_, change_, gate_, up_;
};

}  // namespace kvbound::traces
