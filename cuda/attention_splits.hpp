// How attention's tokens are split over blocks, and what each block leaves to the kernel that joins them.
#pragma once

#include <algorithm>
#include <cmath>

#include <kvbound/cuda/primitives/token_tile.hpp>

#include "attention.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kNothing = -INFINITY;

inline constexpr int64_t kMostSplitTokens = 512;
/// Four for each multiprocessor of an H200; bits must not depend on the device, so this does not.
inline constexpr int64_t kBlocksWanted = 528;
/// Rows of partial outputs are a multiple of this long.
inline constexpr int64_t kRowUnit = 8;

/// Splits are joined in so many slices at a time, one thread for each, by a tree in the end ...
inline constexpr int kJoinSlices = 16;
/// ... and a thread adds up so many splits before it adds their sum to the others'.
inline constexpr int kJoinPart = 4;

constexpr int64_t ceil_division(int64_t number, int64_t divisor) { return (number + divisor - 1) / divisor; }
constexpr int64_t round_up(int64_t number, int64_t unit) { return ceil_division(number, unit) * unit; }

/// How the tokens of a cache are split.
struct Splits {
  int64_t tokens;  ///< of one split
  int64_t count;

  Splits(int64_t kv_heads, int64_t capacity)
      : tokens(std::clamp(round_up(ceil_division(capacity * kv_heads, kBlocksWanted), kTileTokens),
                          int64_t{kTileTokens}, kMostSplitTokens)),
        count(ceil_division(capacity, tokens)) {}
};

/// What every block leaves to the kernel that joins them.
struct Partials {
  float* outputs;  ///< [query_heads, splits, row]: sum_j exp(z_j - largest) values[j,:]
  float* largest;  ///< [query_heads, splits]: max_j z_j
  float* sums;     ///< [query_heads, splits]: sum_j exp(z_j - largest)
  int64_t row;

  Partials(void* memory, int64_t query_heads, int64_t head_dim, int64_t splits)
      : outputs(static_cast<float*>(memory)), row(round_up(head_dim, kRowUnit)) {
    largest = outputs + query_heads * splits * row;
    sums = largest + query_heads * splits;
  }
  static int64_t bytes(int64_t query_heads, int64_t head_dim, int64_t splits) {
    return query_heads * splits * (round_up(head_dim, kRowUnit) + 2) * static_cast<int64_t>(sizeof(float));
  }
};

/// What joining takes.
struct JoinArguments {
  const int64_t* entries;
  Partials partials;
  Splits splits;
  AttentionResult result;
  int64_t query_heads, group_size, head_dim;
};

/// Queues the kernel that makes results of what the blocks have left.
void join_splits(const JoinArguments& arguments, Stream stream);

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
