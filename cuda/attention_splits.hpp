// How the entries of a layer's KV heads are split over blocks, and the partial results that attention_join_kernel combines.
#pragma once

#include <algorithm>

#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>
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

/// The length of a split, if all KV heads together have so many entries.
__host__ __device__ inline int64_t split_tokens(const Deal& deal, int64_t total) {
  const int64_t balanced = round_up(ceil_division(total, deal.blocks_wanted), kTileTokens);
  return max(int64_t{kTileTokens}, min(balanced, deal.most_split_tokens));
}

/// So many splits a cache of this capacity has at most: those of a full one, and one for the last entries of each head.
inline int64_t most_splits(const Deal& deal, int64_t kv_heads, int64_t capacity) {
  const int64_t of_full_cache = std::max(deal.blocks_wanted, kv_heads * capacity / deal.most_split_tokens);
  return std::min(kv_heads * ceil_division(capacity, kTileTokens), of_full_cache + kv_heads);
}

/// The splits of a layer, those of KV head 0 first. All but the last of each head have the same length, which follows from
/// the entries of all heads together: however ragged the heads are, their blocks have equally much to do, and results do
/// not depend on the capacity. Device code that whole warps call.
struct Splits {
  const int64_t* entries;  // [kv_heads]
  int64_t kv_heads;
  int64_t tokens;  // of one split

  __device__ Splits(const Deal& deal, const int64_t* entries_of_heads, int64_t heads)
      : entries(entries_of_heads), kv_heads(heads) {
    int64_t total = 0;
    for (int64_t g = lane(); g < kv_heads; g += 32) total += entries[g];
    tokens = split_tokens(deal, warp_sum(total));
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

/// The partial results of all splits: written by the kernels of the splits, read by attention_join_kernel. A group's queries
/// are those of all query heads that share a KV head, each with all of its queries.
struct Partials {
  float* outputs;     ///< [splits, group, row]: sum_j exp(z_j - largest) values[j,:]
  float* largest;     ///< [splits, group]: max_j z_j
  float* sums;        ///< [splits, group]: sum_j exp(z_j - largest)
  int* largest_rows;  ///< [splits, group]: the first j of the largest z_j, as a row of the cache
  int64_t row;        ///< numbers of a row of outputs
  int group_queries;

  Partials(void* memory, int64_t group, int64_t head_dim, int64_t splits)
      : outputs(static_cast<float*>(memory)),
        row(round_up(head_dim, kRowUnit)),
        group_queries(static_cast<int>(group)) {
    largest = outputs + splits * group_queries * row;
    sums = largest + splits * group_queries;
    largest_rows = reinterpret_cast<int*>(sums + splits * group_queries);
  }
  static int64_t bytes(int64_t group, int64_t head_dim, int64_t splits) {
    return splits * group * (round_up(head_dim, kRowUnit) + 3) * static_cast<int64_t>(sizeof(float));
  }
};

/// The arguments of the kernels that attend to one split each.
template <Storage T>
struct SplitArguments {
  Deal deal;
  DeviceTensor<const T> queries;  ///< [query_heads, window, head_dim]
  CacheView<T> cache;
  float scale;
  AttentionResult result;
  Partials partials;
  /// [query_heads, window]: the dominant row of a query, which it does not see; -1: none. Only splits that hold one are
  /// attended to, the others' partial results are there already. null: no row is left out, all splits are attended to
  const int64_t* dominants = nullptr;

  /// The n-th query of all heads.
  __device__ const T* query(int n) const {
    return queries.data + n / window() * queries.slice_stride + n % window() * queries.row_stride;
  }
  /// What a query sees of a split: its first `tokens` tokens, but for the one that is hidden, -1 for none.
  struct alignas(8) Sight {
    int tokens, hidden;
  };
  /// What the n-th query of all sees of a split of its KV head. The last query of a window sees all rows of the head.
  __device__ Sight sight(const Split& split, int n) const {
    const int64_t later = window() - 1 - n % window();
    const int64_t visible = min(split.tokens, cache.entries[split.kv_head] - later - split.first);
    return {static_cast<int>(max(int64_t{0}, visible)), dominants ? dominant_token(split, n) : -1};
  }
  /// The n-th query's dominant row, counted in the split; -1: it is not in the split.
  __device__ int dominant_token(const Split& split, int n) const {
    const int64_t token = dominants[n] - split.first;
    return 0 <= token && token < split.tokens ? static_cast<int>(token) : -1;
  }
  /// Whether a block has to attend to its split: always the first time, then if a query first, first + 1, ... has its dominant
  /// row there. Whole warps call it.
  __device__ bool has_work(const Split& split, int first, int count) const {
    if (!dominants) return true;
    bool some = false;
    for (int n = lane(); n < count; n += 32) some = some || dominant_token(split, first + n) >= 0;
    return __ballot_sync(kAllLanes, some ? 1 : 0) != 0;
  }
  __device__ int window() const { return static_cast<int>(queries.rows); }
  __host__ __device__ int64_t kv_heads() const { return cache.keys.slices; }
  __host__ __device__ int64_t capacity() const { return cache.keys.rows; }
  /// Queries of all heads that share a KV head.
  __host__ __device__ int group_queries() const { return partials.group_queries; }
  /// Blocks for the splits of a full cache; those behind the last split end at once.
  int64_t blocks() const { return most_splits(deal, kv_heads(), capacity()); }
  /// The most tokens of a split, for any entries that fit the cache.
  int most_tokens() const { return static_cast<int>(split_tokens(deal, kv_heads() * capacity())); }
};

/// Queues the kernel of the splits: attention_portable_kernel for fp32, attention_mma_kernel for 16-bit types. The cache
/// has room for an entry.
template <Storage T>
void attend_to_splits(const SplitArguments<T>& arguments, Stream stream);
template <>
void attend_to_splits(const SplitArguments<float>& arguments, Stream stream);

/// The arithmetic of these kernels; accumulation_depth: within a split of so many tokens.
template <Storage T>
KernelArithmetic split_arithmetic(int64_t tokens, int64_t head_dim);
template <>
KernelArithmetic split_arithmetic<float>(int64_t tokens, int64_t head_dim);

/// The arguments of attention_join_kernel.
struct JoinArguments {
  Deal deal;
  const int64_t* entries;
  int64_t kv_heads;
  Partials partials;
  AttentionResult result;
  int64_t head_dim;
  int64_t capacity;
  int64_t* dominants = nullptr;      ///< [queries], as DominantEntries::rows; null: not wanted
  float* dominant_logits = nullptr;  ///< likewise
};

/// Queues attention_join_kernel, which combines the splits to the results.
void join_splits(const JoinArguments& arguments, Stream stream);

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
