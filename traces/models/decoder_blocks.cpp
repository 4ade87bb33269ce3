#include "decoder_blocks.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/instruction_set.hpp>
#include <kvbound/reference/numerics/largest.hpp>

#include "../half_numbers.hpp"
#include "linear.hpp"

namespace kvbound::traces {
namespace {

std::vector<float> divisors_of(const Checkpoint& checkpoint) {
  if (!checkpoint.rope_divisors()) return {};
  std::vector<float> divisors(checkpoint.rope_divisors()->cols);
  checkpoint.rope_divisors()->read(0, divisors);
  return divisors;
}

// Rounds every number that fits; whether all do.
template <auto rounded>
bool round_numbers(std::span<float> numbers) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  uint32_t any = 0;
  reference::with_widest_instructions([&]() __attribute__((always_inline)) {
    uint32_t unfit = 0;
    for (float& number : numbers) {
      const float result = rounded(number);
      const auto before = std::bit_cast<uint32_t>(number), after = std::bit_cast<uint32_t>(result);
      const uint32_t is_unfit = -static_cast<uint32_t>((before & kInfinity) == kInfinity) |
                                -static_cast<uint32_t>((after & kInfinity) == kInfinity);
      number = std::bit_cast<float>((before & is_unfit) | (after & ~is_unfit));
      unfit |= is_unfit;
    }
    any = unfit;
  });
  return any == 0;
}

bool round_numbers(std::span<float> numbers, Dtype stored) {
  if (stored == Dtype::f16) return round_numbers<rounded_to_half>(numbers);
  if (stored == Dtype::bf16) return round_numbers<rounded_to_bfloat>(numbers);
  return reference::all_finite(numbers);
}

// Rounds every number to the stored type.
void round_rows(MutableSingleMatrixView rows, Dtype stored, const char* what, int64_t layer) {
  std::atomic<bool> all_fit = true;
  reference::parallel_for(rows.rows, [&](int64_t i) {
    if (!round_numbers(rows.row(i), stored)) all_fit = false;
  });
  if (all_fit) return;
  for (int64_t i = 0; i < rows.rows; ++i) {  // numbers that do not fit are still as they were: name the first
    for (float number : rows.row(i)) {
      if (round_numbers({&number, 1}, stored)) continue;
      throw NonFinite("layers." + std::to_string(layer) + "." + what + ": " + std::to_string(number) +
                      " does not fit " + std::string(name(stored)));
    }
  }
}

}  // namespace

DecoderBlocks::DecoderBlocks(const Checkpoint& checkpoint, Dtype stored, int64_t piece)
    : checkpoint_(checkpoint),
      config_(checkpoint.config()),
      rope_(config_.rope, config_.head_dim, divisors_of(checkpoint)),
      stored_(stored),
      piece_(piece),
      normed_{config_.model_dim},
      change_{config_.model_dim},
      gate_{config_.feed_forward},
      up_{config_.feed_forward} {}

MutableSingleMatrixView DecoderBlocks::Scratch::of(int64_t rows) {
  numbers.resize(std::max<size_t>(numbers.size(), rows * cols));
  return {numbers.data(), rows, cols};
}

void DecoderBlocks::embed(std::span<const int64_t> tokens, MutableSingleMatrixView hidden) const {
  for (int64_t i = 0; i < hidden.rows; ++i) {
    require_within("token", tokens[i], 0, config_.vocabulary - 1);
    checkpoint_.embedding().read(tokens[i], hidden.row(i));
  }
}

void DecoderBlocks::project(int64_t layer, SingleMatrixView hidden, std::span<const int64_t> positions,
                            const AttentionInputs& inputs) {
  const LayerWeights& weights = checkpoint_.layers()[layer];
  const MutableSingleMatrixView normed = normed_.of(hidden.rows);
  rms_norm(weights.attention_norm, config_.norm_epsilon, hidden, normed);
  linear({{weights.query, inputs.queries}, {weights.key, inputs.keys}, {weights.value, inputs.values}},
         normed, piece_);
  if (weights.query_bias) add_bias(*weights.query_bias, inputs.queries);
  if (weights.key_bias) add_bias(*weights.key_bias, inputs.keys);
  if (weights.value_bias) add_bias(*weights.value_bias, inputs.values);
  if (weights.query_norm) normalise_heads(*weights.query_norm, inputs.queries);
  if (weights.key_norm) normalise_heads(*weights.key_norm, inputs.keys);
  rotate_heads(inputs.queries, positions);
  rotate_heads(inputs.keys, positions);
  round_rows(inputs.queries, stored_, "query", layer);
  round_rows(inputs.keys, stored_, "key", layer);
  round_rows(inputs.values, stored_, "value", layer);
}

void DecoderBlocks::finish(int64_t layer, SingleMatrixView outputs, MutableSingleMatrixView hidden) {
  const LayerWeights& weights = checkpoint_.layers()[layer];
  const MutableSingleMatrixView change = change_.of(hidden.rows);
  linear({{weights.output, change}}, outputs, piece_);
  add(hidden, change);
  feed_forward(weights, hidden);
}

void DecoderBlocks::unembed(SingleMatrixView hidden, MutableSingleMatrixView logits, int64_t piece) {
  const MutableSingleMatrixView normed = normed_.of(hidden.rows);
  rms_norm(checkpoint_.output_norm(), config_.norm_epsilon, hidden, normed);
  linear({{checkpoint_.output(), logits}}, normed, piece);
}

// Norms of every head's numbers.
void DecoderBlocks::normalise_heads(const Weight& norm, MutableSingleMatrixView rows) const {
  const MutableSingleMatrixView heads(rows.data, rows.rows * rows.cols / config_.head_dim, config_.head_dim);
  rms_norm(norm, config_.norm_epsilon, heads, heads);
}

void DecoderBlocks::rotate_heads(MutableSingleMatrixView rows, std::span<const int64_t> positions) const {
  const auto half = static_cast<size_t>(config_.head_dim / 2);
  reference::parallel_for(
      rows.rows, [half] { return std::vector<float>(2 * half); },
      [&](std::vector<float>& angles, int64_t i) {
        const std::span<float> cosines(angles.data(), half), sines(angles.data() + half, half);
        rope_.angles(positions[i], cosines, sines);
        for (int64_t c = 0; c < rows.cols; c += config_.head_dim) {
          rope_.rotate(rows.row(i).subspan(c, config_.head_dim), cosines, sines);
        }
      });
}

void DecoderBlocks::feed_forward(const LayerWeights& weights, MutableSingleMatrixView hidden) {
  const MutableSingleMatrixView normed = normed_.of(hidden.rows), change = change_.of(hidden.rows),
                                gate = gate_.of(hidden.rows), up = up_.of(hidden.rows);
  rms_norm(weights.feed_forward_norm, config_.norm_epsilon, hidden, normed);
  linear({{weights.gate, gate}, {weights.up, up}}, normed, piece_);
  swish_gate(gate, up);
  linear({{weights.down, change}}, gate, piece_);
  add(hidden, change);
}

}  // namespace kvbound::traces
