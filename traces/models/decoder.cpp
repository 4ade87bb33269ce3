#include "decoder.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::traces {
namespace {

constexpr int64_t kBlockTokens = 1024;  // that go through a layer's matrices together

MutableSingleMatrixView matrix(std::vector<float>& numbers, int64_t rows) {
  return {numbers.data(), rows, std::ssize(numbers) / rows};
}

}  // namespace

Decoder::Decoder(const Checkpoint& checkpoint, int64_t tokens, Dtype stored)
    : config_(checkpoint.config()),
      blocks_(checkpoint, stored, kBlockTokens),
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

std::vector<float> Decoder::run(std::span<const int64_t> tokens, const Observer& observer) {
  const auto count = std::ssize(tokens);
  require_within("number of tokens", count, 1, tokens_ - position_);
  Rows rows;
  rows.hidden.resize(count * config_.model_dim);
  rows.queries.resize(count * config_.query_heads * config_.head_dim);
  rows.outputs.resize(rows.queries.size());
  rows.keys.resize(std::min(count, kBlockTokens) * config_.kv_heads * config_.head_dim);
  rows.values.resize(rows.keys.size());
  rows.positions.resize(count);
  std::iota(rows.positions.begin(), rows.positions.end(), position_);
  const MutableSingleMatrixView hidden = matrix(rows.hidden, count);
  blocks_.embed(tokens, hidden);
  position_ += count;
  for (int64_t l = 0; l < config_.layers; ++l) run_layer(l, rows, observer);
  std::vector<float> logits(config_.vocabulary);
  blocks_.unembed(hidden.middle_rows(count - 1, 1), {logits.data(), 1, config_.vocabulary}, 1);
  return logits;
}

void Decoder::run_layer(int64_t layer, Rows& rows, const Observer& observer) {
  const auto count = std::ssize(rows.positions);
  const int64_t first = rows.positions.front();
  const MutableSingleMatrixView hidden = matrix(rows.hidden, count), queries = matrix(rows.queries, count),
                                outputs = matrix(rows.outputs, count);
  const auto in_blocks = [&](const auto& work) {
    for (int64_t begin = 0; begin < count; begin += kBlockTokens)
      work(begin, std::min(kBlockTokens, count - begin));
  };
  const int64_t width = config_.kv_heads * config_.head_dim;
  in_blocks([&](int64_t begin, int64_t size) {
    const MutableSingleMatrixView keys(rows.keys.data(), size, width),
        values(rows.values.data(), size, width);
    blocks_.project(layer, hidden.middle_rows(begin, size), std::span(rows.positions).subspan(begin, size),
                    {queries.middle_rows(begin, size), keys, values});
    store(keys, first + begin, caches_[layer].keys);
    store(values, first + begin, caches_[layer].values);
  });
  causal_attention(cache(layer), queries, first, 1 / std::sqrt(static_cast<double>(config_.head_dim)),
                   outputs);
  if (observer) observer({layer, first, queries, outputs});
  in_blocks([&](int64_t begin, int64_t size) {
    blocks_.finish(layer, outputs.middle_rows(begin, size), hidden.middle_rows(begin, size));
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

}  // namespace kvbound::traces
