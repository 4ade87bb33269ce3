// How attention's tokens are split over blocks, and the partial results that attention_join_kernel combines.
#pragma once

#include <algorithm>

#include <kvbound/cuda/primitives/token_tile.hpp>

#include "attention.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {

inline constexpr int64_t kMostSplitTokens = 512;
/// Four for each multiprocessor of an H200. A constant, because results must not depend on the device.
inline constexpr int64_t kBlocksWanted = 528;
/// The length of a row of partial outputs is a multiple of this.
inline constexpr int64_t kRowUnit = 8;

/// A query head's splits are dealt to so many slices; a thread sums each slice, and a tree adds the slices' sums.
inline constexpr int kJoinSlices = 16;
/// Within its slice a thread sums so many splits to a part before it adds the part to the slice's sum.
inline constexpr int kJoinPart = 4;

/// How the tokens of a cache are split.
struct Splits {
  int64_t tokens;  ///< of one split
  int64_t count;

  Splits(int64_t kv_heads, int64_t capacity)
      : tokens(std::clamp(round_up(ceil_division(capacity * kv_heads, kBlocksWanted), kTileTokens),
                          int64_t{kTileTokens}, kMostSplitTokens)),
        count(ceil_division(capacity, tokens)) {}
};

/// The partial results of all splits: written by attention_split_kernel, read by attention_join_kernel.
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

/// The arguments of attention_join_kernel.
struct JoinArguments {
  const int64_t* entries;
  Partials partials;
  Splits splits;
  AttentionResult result;
  int64_t query_heads, group_size, head_dim;
};

/// Queues attention_join_kernel, which combines the splits to the results.
void join_splits(const JoinArguments& arguments, Stream stream);

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
