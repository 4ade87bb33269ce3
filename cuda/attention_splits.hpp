// How the entries of a layer's KV heads are split over blocks, and the partial results that attention_join_kernel combines.
#pragma once

#include <algorithm>

#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/token_tile.hpp>

#include "attention.hpp"
#include "attention_variants.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {

/// The length of a row of partial outputs is a multiple of this.
inline constexpr int64_t kRowUnit = 8;

/// A query head's splits are dealt to so many slices; a thread sums each slice, and a tree adds the slices' sums.
inline constexpr int kJoinSlices = 16;
/// Within its slice a thread sums so many splits to a part before it adds the part to the slice's sum.
inline constexpr int kJoinPart = 4;

/// One split: successive entries of a KV head.
struct Split {
  int64_t kv_head, first;
  int64_t tokens;  ///< 0: none
};

/// The splits of a layer, those of KV head 0 first. All but the last of each head have the same length, which follows from
/// the entries of all heads together: however ragged the heads are, their blocks have equally much to do, and results do
/// not depend on the capacity. Device code that whole warps call.
///
/// kDeal  the number of a deal
template <int kDeal>
struct Splits {
  static constexpr int64_t kBlocksWanted = kDeals[kDeal].blocks_wanted;
  static constexpr int64_t kMostSplitTokens = kDeals[kDeal].most_split_tokens;

  const int64_t* entries;  // [kv_heads]
  int64_t kv_heads;
  int64_t tokens;  // of one split

  __device__ Splits(const int64_t* entries_of_heads, int64_t heads)
      : entries(entries_of_heads), kv_heads(heads) {
    int64_t total = 0;
    for (int64_t g = lane(); g < kv_heads; g += 32) total += entries[g];
    tokens = tokens_of(warp_sum(total));
  }

  /// The length of a split, if all heads together have so many entries.
  __host__ __device__ static int64_t tokens_of(int64_t total) {
    const int64_t balanced = round_up(ceil_division(total, kBlocksWanted), kTileTokens);
    return max(int64_t{kTileTokens}, min(balanced, int64_t{kMostSplitTokens}));
  }
  /// So many splits a cache of this capacity has at most: those of a full one, and one for the last entries of each head.
  static int64_t most(int64_t kv_heads, int64_t capacity) {
    const int64_t of_full_cache = std::max(int64_t{kBlocksWanted}, kv_heads * capacity / kMostSplitTokens);
    return std::min(kv_heads * ceil_division(capacity, kTileTokens), of_full_cache + kv_heads);
  }

  __device__ int64_t of_head(int64_t g) const { return ceil_division(entries[g], tokens); }
  __device__ int64_t before_head(int64_t g) const {
    int64_t count = 0;
    for (int64_t other = lane(); other < g; other += 32) count += of_head(other);
    return warp_sum(count);
  }

  /// The n-th split of all.
  __device__ Split at(int64_t n) const {
    for (int64_t begin = 0; begin < kv_heads; begin += 32) {
      const int64_t g = begin + lane();
      const int64_t own = g < kv_heads ? of_head(g) : 0;
      int64_t through = own;  // splits of the heads begin..g
      for (int distance = 1; distance < 32; distance *= 2) {
        const int64_t other = __shfl_up_sync(kAllLanes, through, static_cast<unsigned>(distance));
        if (lane() >= distance) through += other;
      }
      if (const unsigned reaching = __ballot_sync(kAllLanes, n < through)) {
        const int of = __ffs(static_cast<int>(reaching)) - 1;
        const int64_t first = (n - __shfl_sync(kAllLanes, through - own, of)) * tokens;
        return {begin + of, first, min(tokens, entries[begin + of] - first)};
      }
      n -= __shfl_sync(kAllLanes, through, 31);
    }
    return {0, 0, 0};
  }
};

/// The partial results of all splits: written by attention_split_kernel, read by attention_join_kernel.
struct Partials {
  float* outputs;  ///< [splits, group, row]: sum_j exp(z_j - largest) values[j,:]
  float* largest;  ///< [splits, group]: max_j z_j
  float* sums;     ///< [splits, group]: sum_j exp(z_j - largest)
  int64_t row;
  int group_size;

  Partials(void* memory, int64_t group, int64_t head_dim, int64_t splits)
      : outputs(static_cast<float*>(memory)),
        row(round_up(head_dim, kRowUnit)),
        group_size(static_cast<int>(group)) {
    largest = outputs + splits * group_size * row;
    sums = largest + splits * group_size;
  }
  static int64_t bytes(int64_t group, int64_t head_dim, int64_t splits) {
    return splits * group * (round_up(head_dim, kRowUnit) + 2) * static_cast<int64_t>(sizeof(float));
  }
};

/// The arguments of attention_join_kernel.
struct JoinArguments {
  const int64_t* entries;
  int64_t kv_heads;
  Partials partials;
  AttentionResult result;
  int64_t head_dim;
};

/// Queues attention_join_kernel, which combines the splits to the results.
///
/// deal  by which the entries were split
void join_splits(int deal, const JoinArguments& arguments, Stream stream);

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
