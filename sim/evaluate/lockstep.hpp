// Several sequences that decode the same tokens side by side through a model, each through a separate cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/traces/models/decoder_blocks.hpp>

namespace kvbound::sim {

/// One layer's decode steps of one sequence, in double precision.
struct DecodeSteps {
  Tensor keys, values;  ///< [kv_heads, steps, head_dim]
  Tensor queries;       ///< [query_heads, steps, head_dim]

  std::vector<StepView> views() const;
};

/// The hidden states of all sequences. Tokens are given, not chosen, so that all steps go through a
/// layer together: weights are read once for as many sequences as have `block_rows` steps together (at
/// least one), and not once per step. A sequence's bits do not depend on the other sequences: equal
/// caches give equal hidden states.
///
/// For every layer in turn: project(), then set_outputs() of every sequence, then finish().
class Lockstep {
 public:
  /// checkpoint  outlives the object
  /// tokens      that are decoded
  /// first       position of the first of them
  /// stored      queries, keys and values are rounded to this type
  /// block_rows  no result depends on it. Many, because each time all weights are read and decoded; not all,
  ///             because the feed-forward block is several times as wide as the hidden state
  Lockstep(const traces::Checkpoint& checkpoint, std::span<const int64_t> tokens, int64_t first,
           int64_t sequences, Dtype stored, int64_t block_rows = 4096);

  /// Forms the attention inputs of all sequences. Throws as traces::DecoderBlocks.
  void project(int64_t layer);
  /// What `project` formed for a sequence.
  DecodeSteps inputs(int64_t sequence) const;
  /// records  [steps], of which `output` is taken
  void set_outputs(int64_t sequence, std::span<const StepRecord> records);
  /// The rest of the layer.
  void finish(int64_t layer);

  /// The mean over steps of || h - h_0 ||_2 / || h_0 ||_2, h a sequence's hidden state and h_0 that of
  /// sequence 0. 0/0 is 0; throws NonFinite for x/0.
  double relative_distance(int64_t sequence) const;

  /// Logits of the tokens behind some successive steps.
  ///
  /// returns  [sequences * count, vocabulary]: a sequence's steps one after the other
  std::vector<float> logits(int64_t first_step, int64_t count);

 private:
  // [sequences * steps, columns]
  struct Rows {
    std::vector<float> numbers;
    int64_t cols = 0;
    MutableSingleMatrixView view();
    SingleMatrixView view() const;
  };

  Rows rows(int64_t cols) const;
  template <class Work>
  void in_blocks(const Work& work) const;
  Tensor heads_of(const Rows& rows, int64_t sequence, int64_t heads) const;

  traces::DecoderBlocks blocks_;
  const traces::ModelConfig& config_;
  int64_t sequences_, steps_, block_rows_;
  std::vector<int64_t> positions_;  // [sequences * steps]
  Rows hidden_, queries_, keys_, values_, outputs_;
};

}  // namespace kvbound::sim
