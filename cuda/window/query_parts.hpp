// Parts of a window's queries that warps multiply by mma.sync, and products of 16 tokens with
// them as C operands (primitives/row_fragments.hpp). Exponents are to base 2, so that the scale
// and log2 e are one factor.
#pragma once

#include <numbers>

#include <kvbound/cuda/primitives/row_fragments.hpp>

#include "window_tiles.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace window_tiles {

/// The part of a window that a warp multiplies: some queries of one head, which need not
/// all exist, in tiles of 8.
struct QueryPart {
  int64_t head;
  int first;  ///< query
  bool exists;

  /// The place in its part of a thread's i-th query: it has 2 (l % 4) and the next one of every tile.
  __device__ static int column(int i) { return i / 2 * kFragmentRows + lane() % 4 * 2 + i % 2; }
  /// The query of the thread's i-th one.
  __device__ int place(int i) const { return first + column(i); }
};
/// Tiles of a part whose queries alone are in registers, where they take 2 kSteps each, and its queries.
template <int kSteps>
inline constexpr int kPartTiles = kSteps <= 12 ? 4 : 2;
template <int kSteps>
inline constexpr int kPartQueries = kFragmentRows* kPartTiles<kSteps>;
/// Tokens of a block that reads its keys again for each part of a window, so that they stay in the L2 cache.
inline constexpr int64_t kRereadTokens = 256;

/// What of a split a warp's queries attend to.
struct Visible {
  int limit;  ///< the number of the split's tokens that the thread's query 0 attends to, were there as many
  int count;  ///< of the split's tokens
  int all;    ///< tokens that all queries of the window attend to

  template <Storage16 T>
  __device__ Visible(const Window<T>& window, const QueryPart& part, int64_t first, int tokens)
      : count(tokens) {
    const int64_t of_first = window.visible(0) - first;  // by the window's first query
    const auto most = static_cast<int64_t>(tokens);
    all = static_cast<int>(max(int64_t{0}, min(of_first, most)));
    limit = static_cast<int>(min(of_first, most)) + part.place(0);
  }
  /// Whether the thread's i-th query attends to a token of the split.
  __device__ bool sees(int i, int token) const {
    return token < min(limit + i / 2 * kFragmentRows + i % 2, count);
  }
};

/// Products of 16 tokens and a part's queries: of the thread's tokens l / 4 and l / 4 + 8 and its queries.
template <int kTiles>
struct PartProducts {
  static constexpr int kOwn = 2 * kTiles;  ///< queries of a thread, of which QueryPart::place tells
  float numbers[kTiles][4];

  __device__ float& of(int half, int i) { return numbers[i / 2][2 * half + i % 2]; }
  __device__ static int token(int half) { return lane() / 4 + 8 * half; }

  /// Puts -infinity where a query does not attend to a token; `first`: the first of the 16 tokens.
  __device__ void mask(const Visible& visible, int first) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if (!visible.sees(i, first + token(half))) of(half, i) = kNothing;
      }
    }
  }
};

/// Adds what the four lanes that share their tokens have for tokens l / 4 and l / 4 + 8: returns the sum for
/// the former, and in odd lanes for the latter.
__device__ inline float sum_over_queries(const float (&sums)[2]) {
  const bool odd = lane() % 2 != 0;
  float sum = (odd ? sums[1] : sums[0]) + __shfl_xor_sync(kAllLanes, odd ? sums[0] : sums[1], 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  return sum;
}

/// Minus the log-sum-exp of a part's query, to base 2; -infinity for one that does not exist.
template <Storage16 T>
__device__ float offset_of(const Window<T>& window, const QueryPart& part, int place,
                           const float* log_sum_exp) {
  constexpr auto kLog2E = static_cast<float>(std::numbers::log2e);
  constexpr auto kRest = static_cast<float>(std::numbers::log2e - kLog2E);
  if (!part.exists || place >= window.size()) return kNothing;
  const float log_sum = log_sum_exp[part.head * window.size() + place];
  return -fmaf(log_sum, kLog2E, log_sum * kRest);  // two parts of log2 e: the product is rounded once
}

/// Those of each of the thread's queries.
template <Storage16 T, int kOwn>
__device__ void load_offsets(const Window<T>& window, const QueryPart& part, const float* log_sum_exp,
                             float (&offsets)[kOwn]) {
#pragma unroll
  for (int i = 0; i < kOwn; ++i) offsets[i] = offset_of(window, part, part.place(i), log_sum_exp);
}

/// What products are multiplied by for logits to base 2.
template <Storage16 T>
float binary_scale(const Window<T>& window) {
  return static_cast<float>(double{window.scale} * std::numbers::log2e);
}

}  // namespace window_tiles
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
