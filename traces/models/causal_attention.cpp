#include "causal_attention.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/single_exponential.hpp>

namespace kvbound::traces {
namespace {

constexpr int64_t kBlockQueries = 128;  // queries of one head at a time

using Scratch = std::vector<float>;  // [rows, positions]

// The largest of at least one number, by partial maxima that the processor can form in parallel.
float largest(std::span<const float> numbers) {
  std::array<float, 16> most;
  most.fill(numbers.front());
  const size_t whole = numbers.size() / most.size() * most.size();
  for (size_t i = 0; i < whole; i += most.size()) {
    for (size_t c = 0; c < most.size(); ++c) most[c] = most[c] < numbers[i + c] ? numbers[i + c] : most[c];
  }
  for (const float number : numbers.subspan(whole)) most[0] = std::max(most[0], number);
  return std::ranges::max(most);
}

// Replaces the logits of the first `seen` positions by attention weights, and those behind by 0.
void softmax(std::span<float> logits, int64_t seen) {
  const std::span<float> own = logits.first(seen);
  const auto share = static_cast<float>(1 / reference::exponentiate(own, largest(own)));
  for (float& weight : own) weight *= share;
  std::ranges::fill(logits.subspan(seen), 0.0F);
}

// A block of one query head's queries, the first of them at position `first`.
void attend(const CachedHead& head, SingleMatrixView queries, int64_t first, float scale,
            MutableSingleMatrixView outputs, Scratch& scratch) {
  const int64_t positions = first + queries.rows;
  scratch.resize(queries.rows * positions);
  const MutableSingleMatrixView weights(scratch.data(), queries.rows, positions);
  reference::multiply_transposed(queries, head.keys.middle_rows(0, positions), weights, scale);
  for (int64_t i = 0; i < queries.rows; ++i) softmax(weights.row(i), first + i + 1);
  reference::multiply(weights, head.values.middle_rows(0, positions), outputs);
}

}  // namespace

void causal_attention(std::span<const CachedHead> heads, SingleMatrixView queries, int64_t first,
                      double scale, MutableSingleMatrixView outputs) {
  const int64_t head_dim = heads.front().keys.cols, query_heads = queries.cols / head_dim;
  const int64_t group = query_heads / std::ssize(heads),
                blocks = (queries.rows + kBlockQueries - 1) / kBlockQueries;
  reference::parallel_for(
      query_heads * blocks, [] { return Scratch(); },
      [&](Scratch& scratch, int64_t piece) {
        const int64_t h = piece % query_heads,
                      begin = (blocks - 1 - piece / query_heads) * kBlockQueries;  // longest first
        const int64_t rows = std::min(kBlockQueries, queries.rows - begin);
        const auto own = [&](auto matrix) {
          return matrix.middle_rows(begin, rows).middle_cols(h * head_dim, head_dim);
        };
        attend(heads[h / group], own(queries), first + begin, static_cast<float>(scale), own(outputs),
               scratch);
      });
}

}  // namespace kvbound::traces
