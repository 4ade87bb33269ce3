#include "decoder.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/float16.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/parallel.hpp>

#include "linear.hpp"

namespace kvbound::traces {
namespace {

constexpr int64_t kBlockTokens = 1024;  // that go through a layer's matrices together

std::vector<float> divisors_of(const Checkpoint& checkpoint) {
  if (!checkpoint.rope_divisors()) return {};
  std::vector<float> divisors(checkpoint.rope_divisors()->cols);
  checkpoint.rope_divisors()->read(0, divisors);
  return divisors;
}

float rounded(float number, Dtype stored) {
  if (stored == Dtype::f16) return static_cast<float>(from_float16(to_float16(number)));
  if (stored == Dtype::bf16) return static_cast<float>(from_bfloat16(to_bfloat16(number)));
  return number;
}

// Rounds every number to the stored type.
void round_rows(MutableSingleMatrixView rows, Dtype stored, const char* what, int64_t layer) {
  std::atomic<bool> all_fit = true;
  reference::parallel_for(rows.rows, [&](int64_t i) {
    for (float& number : rows.row(i)) {
      const float result = rounded(number, stored);
      if (std::isfinite(result))
        number = result;
      else
        all_fit = false;
    }
  });
  if (all_fit) return;
  for (int64_t i = 0; i < rows.rows; ++i) {  // numbers that do not fit are still as they were: name the first
    for (const float number : rows.row(i)) {
      if (std::isfinite(rounded(number, stored))) continue;
      throw NonFinite("layers." + std::to_string(layer) + "." + what + ": " + std::to_string(number) +
                      " does not fit " + std::string(name(stored)));
    }
  }
}

}  // namespace

// Working memory of the tokens that run together.
struct Decoder::Rows {
  // A matrix that owns its numbers.
  struct SingleMatrix {
    std::vector<float> numbers;
    int64_t cols = 0;

    MutableSingleMatrixView of(int64_t rows) {
      numbers.resize(std::max<size_t>(numbers.size(), rows * cols));
      return {numbers.data(), rows, cols};
    }
  };

  explicit Rows(const ModelConfig& config)
      : normed{{}, config.model_dim},
        queries{{}, config.query_heads * config.head_dim},
        outputs{{}, config.query_heads * config.head_dim},
        keys{{}, config.kv_heads * config.head_dim},
        values{{}, config.kv_heads * config.head_dim},
        gate{{}, config.feed_forward},
        up{{}, config.feed_forward},
        change{{}, config.model_dim} {}

  SingleMatrix normed, queries, outputs, keys, values, gate, up, change;
};

Decoder::Decoder(const Checkpoint& checkpoint, int64_t tokens, Dtype stored)
    : checkpoint_(checkpoint),
      config_(checkpoint.config()),
      rope_(config_.rope, config_.head_dim, divisors_of(checkpoint)),
      stored_(stored),
      tokens_(tokens),
      caches_(config_.layers) {
  for (LayerCache& cache : caches_) {
    cache.keys.resize(config_.kv_heads * tokens * config_.head_dim);
    cache.values.resize(cache.keys.size());
  }
}

std::vector<CachedHead> Decoder::cache(int64_t layer) const {
  const LayerCache& own = caches_[layer];
  std::vector<CachedHead> heads;
  for (int64_t g = 0; g < config_.kv_heads; ++g) {
    const int64_t begin = g * tokens_ * config_.head_dim;
    heads.push_back({{own.keys.data() + begin, position_, config_.head_dim},
                     {own.values.data() + begin, position_, config_.head_dim}});
  }
  return heads;
}

void Decoder::embed(std::span<const int64_t> tokens, MutableSingleMatrixView hidden) const {
  for (int64_t i = 0; i < hidden.rows; ++i) {
    require_within("token", tokens[i], 0, config_.vocabulary - 1);
    checkpoint_.embedding().read(tokens[i], hidden.row(i));
  }
}

std::vector<float> Decoder::run(std::span<const int64_t> tokens, const Observer& observer) {
  const auto count = std::ssize(tokens);
  require_within("number of tokens", count, 1, tokens_ - position_);
  Rows::SingleMatrix state{{}, config_.model_dim};
  const MutableSingleMatrixView hidden = state.of(count);
  embed(tokens, hidden);
  Rows rows(config_);
  const int64_t first = position_;
  for (int64_t l = 0; l < config_.layers; ++l) {
    position_ = first;
    run_layer(l, hidden, rows, observer);
  }
  const MutableSingleMatrixView last = hidden.middle_rows(count - 1, 1);
  rms_norm(checkpoint_.output_norm(), config_.norm_epsilon, last, last);
  std::vector<float> logits(config_.vocabulary);
  linear(checkpoint_.output(), last, {logits.data(), 1, config_.vocabulary});
  return logits;
}

void Decoder::run_layer(int64_t layer, MutableSingleMatrixView hidden, Rows& rows, const Observer& observer) {
  const int64_t first = position_, count = hidden.rows;
  const MutableSingleMatrixView queries = rows.queries.of(count), outputs = rows.outputs.of(count);
  const auto in_blocks = [&](const auto& work) {
    for (int64_t begin = 0; begin < count; begin += kBlockTokens)
      work(begin, std::min(kBlockTokens, count - begin));
  };
  in_blocks([&](int64_t begin, int64_t size) {
    project(layer, hidden.middle_rows(begin, size), queries.middle_rows(begin, size), first + begin, rows);
  });
  position_ = first + count;
  causal_attention(cache(layer), queries, first, 1 / std::sqrt(static_cast<double>(config_.head_dim)),
                   outputs);
  if (observer) observer({layer, first, queries, outputs});
  const LayerWeights& weights = checkpoint_.layers()[layer];
  in_blocks([&](int64_t begin, int64_t size) {
    const MutableSingleMatrixView block = hidden.middle_rows(begin, size), change = rows.change.of(size);
    linear(weights.output, outputs.middle_rows(begin, size), change);
    add(block, change);
    feed_forward(weights, block, rows);
  });
}

// Forms queries, keys and values of a block of tokens, the first of them at position `first`; keys and values go to the cache.
void Decoder::project(int64_t layer, SingleMatrixView hidden, MutableSingleMatrixView queries, int64_t first,
                      Rows& rows) {
  const LayerWeights& weights = checkpoint_.layers()[layer];
  const MutableSingleMatrixView normed = rows.normed.of(hidden.rows), keys = rows.keys.of(hidden.rows),
                                values = rows.values.of(hidden.rows);
  rms_norm(weights.attention_norm, config_.norm_epsilon, hidden, normed);
  linear(weights.query, normed, queries);
  linear(weights.key, normed, keys);
  linear(weights.value, normed, values);
  if (weights.query_bias) add_bias(*weights.query_bias, queries);
  if (weights.key_bias) add_bias(*weights.key_bias, keys);
  if (weights.value_bias) add_bias(*weights.value_bias, values);
  if (weights.query_norm) normalise_heads(*weights.query_norm, queries);
  if (weights.key_norm) normalise_heads(*weights.key_norm, keys);
  rotate_heads(queries, first);
  rotate_heads(keys, first);
  round_rows(queries, stored_, "query", layer);
  round_rows(keys, stored_, "key", layer);
  round_rows(values, stored_, "value", layer);
  store(keys, first, caches_[layer].keys);
  store(values, first, caches_[layer].values);
}

// Norms of every head's numbers.
void Decoder::normalise_heads(const Weight& norm, MutableSingleMatrixView rows) const {
  const MutableSingleMatrixView heads(rows.data, rows.rows * rows.cols / config_.head_dim, config_.head_dim);
  rms_norm(norm, config_.norm_epsilon, heads, heads);
}

void Decoder::rotate_heads(MutableSingleMatrixView rows, int64_t first) const {
  const auto half = static_cast<size_t>(config_.head_dim / 2);
  reference::parallel_for(
      rows.rows, [half] { return std::vector<float>(2 * half); },
      [&](std::vector<float>& angles, int64_t i) {
        const std::span<float> cosines(angles.data(), half), sines(angles.data() + half, half);
        rope_.angles(first + i, cosines, sines);
        for (int64_t c = 0; c < rows.cols; c += config_.head_dim) {
          rope_.rotate(rows.row(i).subspan(c, config_.head_dim), cosines, sines);
        }
      });
}

// Copies the rows of successive positions to a cache [kv_heads, tokens, head_dim].
void Decoder::store(SingleMatrixView rows, int64_t first, std::vector<float>& cache) const {
  reference::parallel_for(rows.rows, [&](int64_t i) {
    for (int64_t g = 0; g < config_.kv_heads; ++g) {
      const auto head = rows.row(i).subspan(g * config_.head_dim, config_.head_dim);
      std::ranges::copy(head, cache.begin() + (g * tokens_ + first + i) * config_.head_dim);
    }
  });
}

void Decoder::feed_forward(const LayerWeights& weights, MutableSingleMatrixView hidden, Rows& rows) const {
  const MutableSingleMatrixView normed = rows.normed.of(hidden.rows), gate = rows.gate.of(hidden.rows),
                                up = rows.up.of(hidden.rows), change = rows.change.of(hidden.rows);
  rms_norm(weights.feed_forward_norm, config_.norm_epsilon, hidden, normed);
  linear(weights.gate, normed, gate);
  linear(weights.up, normed, up);
  swish_gate(gate, up);
  linear(weights.down, gate, change);
  add(hidden, change);
}

}  // namespace kvbound::traces
