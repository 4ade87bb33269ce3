// How the entries of a layer's KV heads are split over blocks, and the partial results that
// attention_join_kernel combines.
#pragma once

#include <algorithm>

#include <kvbound/cuda/primitives/paged_rows.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>
#include <kvbound/cuda/primitives/token_tile.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "attention.hpp"
#include "attention_variants.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {

/// The length of a row of partial outputs is a multiple of this.
inline constexpr int64_t kRowUnit = 8;
/// Splits whose weights fill a sector.
inline constexpr int64_t kSectorWeights = 2;

/// A query head's splits are distributed to so many slices; a thread sums each slice, and a
/// tree adds the slices' sums.
inline constexpr int kJoinSlices = 16;
/// Within its slice a thread sums so many splits to a part before it adds the part to the slice's sum.
inline constexpr int kJoinPart = 4;

static_assert(1 << PageTable::kLeastBits == kTileTokens, "a tile lies in one page");

/// The tiles of so many tokens, which are none or more.
__device__ inline int tiles_of(int tokens) {
  return static_cast<int>(static_cast<unsigned>(tokens + kTileTokens - 1) / kTileTokens);
}

/// One split: successive entries of a KV head.
struct Split {
  int kv_head, first;
  int tokens;  ///< 0: none
};

/// A partition for kernels, which do not divide: what a block computes before it knows what to load is in the
/// way of every split.
struct SplitLengths {
  static constexpr uint32_t kMostTiles = 16;

  uint32_t tile_entries;  ///< a split has one more tile for each time that the KV heads have so many entries
  uint32_t most_tiles;    ///< of a split
  uint32_t reciprocals[kMostTiles];  ///< of i + 1: 2^31 / (i + 1), rounded up

  explicit SplitLengths(const Partition& partition)
      : tile_entries(partition.blocks_wanted * kTileTokens),
        most_tiles(partition.most_split_tokens / kTileTokens) {
    require_range("tiles of a split", most_tiles, 1, kMostTiles);
    for (uint32_t i = 0; i < kMostTiles; ++i) reciprocals[i] = ((1U << 31) + i) / (i + 1);
  }

  /// The tiles of a split if all KV heads together have so many entries: the blocks wanted have as much to do
  /// as each other, unless a split would be longer than the longest.
  int64_t tiles(int64_t total) const {
    return std::clamp<int64_t>(ceil_division(total, tile_entries), 1, most_tiles);
  }
  /// tiles(total) - 1: lane n finds whether n + 1 tiles are too few. Whole warps call it.
  __device__ uint32_t further_tiles(uint32_t total) const {
    const auto tiles = static_cast<uint32_t>(lane() + 1);
    const bool too_few = tiles < most_tiles && tiles * tile_entries < total;
    return static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, too_few ? 1 : 0)));
  }
  /// number / (further + 1), rounded up; number < 2^27 - kMostTiles, so that a product with a reciprocal,
  /// which is too large by less than kMostTiles / 2^31 of itself, does not reach the next integer.
  __device__ uint32_t quotient(uint32_t number, uint32_t further) const {
    return static_cast<uint32_t>(uint64_t{number + further} * reciprocals[further] >> 31);
  }
};

/// So many splits a cache of this capacity has at most: those of a full one, and one for the
/// last entries of each head.
inline int64_t most_splits(const Partition& partition, int64_t kv_heads, int64_t capacity) {
  const int64_t of_full_cache =
      std::max<int64_t>(partition.blocks_wanted, kv_heads * capacity / partition.most_split_tokens);
  return std::min(kv_heads * ceil_division(capacity, kTileTokens), of_full_cache + kv_heads);
}

/// The splits of a segment, those of KV head 0 first. All but the last of each head have the same length,
/// which follows from the entries of all heads together: however ragged the heads are, their blocks have
/// equally much to do, and results do not depend on the capacity. Device code that whole warps call.
struct Splits {
  const int64_t* entries;  // [kv_heads]
  int kv_heads;
  uint32_t first_entries;  // of KV head lane(), which are all that a segment of up to 32 KV heads needs
  const SplitLengths& lengths;
  uint32_t further_tiles;  // of one split: all but its first

  __device__ Splits(const SplitLengths& of_splits, const int64_t* entries_of_heads, int heads)
      : entries(entries_of_heads), kv_heads(heads), first_entries(entries_of(lane())), lengths(of_splits) {
    uint32_t total = first_entries;
#pragma unroll 1
    for (int g = 32 + lane(); g < kv_heads; g += 32) total += entries_of(g);
    further_tiles = lengths.further_tiles(warp_sum(total));
  }

  __device__ uint32_t entries_of(int g) const {
    return g < kv_heads ? static_cast<uint32_t>(entries[static_cast<unsigned>(g)]) : 0;
  }
  __device__ uint32_t splits_of(uint32_t entries_of_head) const {
    return lengths.quotient((entries_of_head + kTileTokens - 1) / kTileTokens, further_tiles);
  }

  /// The splits of a KV head, and those before them.
  struct OfHead {
    int count, before;
  };
  __device__ OfHead of_head(int g) const {
    uint32_t before = 0, of_lane = first_entries;
    for (int begin = 0;; begin += 32, of_lane = entries_of(begin + lane())) {
      const uint32_t own = splits_of(of_lane);
      if (begin + lane() < g) before += own;
      if (g >= begin + 32) continue;
      return {static_cast<int>(__shfl_sync(kAllLanes, own, g - begin)), static_cast<int>(warp_sum(before))};
    }
  }

  /// The n-th split of all.
  __device__ Split at(uint32_t n) const {
    uint32_t of_lane = first_entries;
#pragma unroll 1
    for (int begin = 0;;) {
      const uint32_t own = splits_of(of_lane);
      uint32_t through = own;  // splits of the heads begin..begin + lane()
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const uint32_t other = __shfl_up_sync(kAllLanes, through, static_cast<unsigned>(distance));
        if (lane() >= distance) through += other;
      }
      if (const unsigned reaching = __ballot_sync(kAllLanes, n < through)) {
        const int of = __ffs(static_cast<int>(reaching)) - 1;
        const uint32_t tokens = (further_tiles + 1) * kTileTokens;
        const uint32_t first = (n - __shfl_sync(kAllLanes, through - own, of)) * tokens;
        const uint32_t rest = __shfl_sync(kAllLanes, of_lane, of) - first;
        return {begin + of, static_cast<int>(first), static_cast<int>(min(tokens, rest))};
      }
      begin += 32;
      if (begin >= kv_heads) return {0, 0, 0};
      n -= __shfl_sync(kAllLanes, through, 31);
      of_lane = entries_of(begin + lane());
    }
  }
};

/// What a query sees of a split, but for the output. It lies in memory as one load of 16 bytes.
struct alignas(16) SplitWeights {
  float largest;    ///< max_j z_j
  float sum;        ///< sum_j exp(z_j - largest)
  int largest_row;  ///< the first j of the largest z_j, as a row of the cache
  int unused = 0;
};

/// The partial results of all splits, those of a segment's full cache before the next one's: written by the
/// kernels of the splits, read by attention_join_kernel. A group's queries are those of all query heads that
/// share a KV head, each with all of its queries.
struct Partials {
  float* outputs;         ///< [splits, group, row]: sum_j exp(z_j - largest) values[j,:]
  SplitWeights* weights;  ///< [group, weights_row]: of the splits; the join reads them by whole sectors
  int64_t row;            ///< numbers of a row of outputs
  int64_t weights_row;    ///< at least the splits, by whole sectors
  int group_queries;
  int kv_heads;         ///< of a segment
  uint32_t of_segment;  ///< splits

  Partials(void* memory, int64_t group, int64_t head_dim, int64_t heads_of_segment, int64_t splits_of_segment,
           int64_t segments)
      : outputs(static_cast<float*>(memory)),
        row(round_up(head_dim, kRowUnit)),
        weights_row(round_up(segments * splits_of_segment, kSectorWeights)),
        group_queries(static_cast<int>(group)),
        kv_heads(static_cast<int>(heads_of_segment)),
        of_segment(static_cast<uint32_t>(splits_of_segment)) {
    weights = reinterpret_cast<SplitWeights*>(outputs + segments * splits_of_segment * group_queries * row);
  }
  static int64_t bytes(int64_t group, int64_t head_dim, int64_t splits) {
    const int64_t outputs = splits * round_up(head_dim, kRowUnit) * static_cast<int64_t>(sizeof(float));
    const int64_t weights = round_up(splits, kSectorWeights) * static_cast<int64_t>(sizeof(SplitWeights));
    return group * (outputs + weights);
  }

  /// The number of the block's split among those of all segments.
  __device__ uint32_t own_split() const { return blockIdx.z * of_segment + blockIdx.x; }
  /// Where the n-th query of the group has what it sees of a split.
  __device__ SplitWeights& weights_of(int64_t n, int64_t split) const {
    return weights[n * weights_row + split];
  }
};

/// The arguments of the kernels that attend to one split each.
template <Storage T>
struct SplitArguments {
  SplitLengths lengths;
  DeviceTensor<const T> queries;  ///< [query_heads, window, head_dim]
  CacheView<T> cache;
  CacheVectors keys, values;  ///< of the cache
  float scale;
  AttentionResult result;
  Partials partials;
  int64_t capacity;
  /// [query_heads, window]: the dominant row of a query, which it does not see; -1: none. Only splits that
  /// hold one are attended to, the others' partial results are there already. null: no row is left out,
  /// all splits are attended to
  const int64_t* dominants = nullptr;
  bool copies_tiles = false;  ///< Partition's

  /// The n-th query of all heads.
  __device__ const T* query(int n) const {
    const auto of_head = static_cast<unsigned>(n) % window();
    return queries.data + static_cast<unsigned>(n) / window() * queries.slice_stride +
           of_head * queries.row_stride;
  }
  /// What a query sees of a split: its first `tokens` tokens, but for the one that is hidden, -1 for none.
  struct alignas(8) VisibleTokens {
    int tokens, hidden;
  };
  /// What the n-th query of all sees of a split of its KV head. The last query of a window
  /// sees all rows of the head.
  __device__ VisibleTokens visible_tokens(const Split& split, int n) const {
    const auto later = static_cast<int>(window() - 1 - static_cast<unsigned>(n) % window());
    const auto entries = static_cast<int>(cache.entries[split.kv_head]);
    const int visible = min(split.tokens, entries - later - split.first);
    return {max(0, visible), dominants ? dominant_token(split, n) : -1};
  }
  /// The n-th query's dominant row, counted in the split; -1: it is not in the split.
  __device__ int dominant_token(const Split& split, int n) const {
    const int64_t token = dominants[n] - split.first;
    return 0 <= token && token < split.tokens ? static_cast<int>(token) : -1;
  }
  /// Whether a block has to attend to its split: always the first time, then if a query first, first + 1, ...
  /// has its dominant row there. Whole warps call it.
  __device__ bool has_work(const Split& split, int first, int count) const {
    if (!dominants) return true;
    bool some = false;
#pragma unroll 1
    for (int n = lane(); n < count; n += 32) some = some || dominant_token(split, first + n) >= 0;
    return __ballot_sync(kAllLanes, some ? 1 : 0) != 0;
  }
  /// Vectors of 16 bytes of a row of keys or values, the last one padded.
  __device__ int head_vectors() const {
    return static_cast<int>((static_cast<unsigned>(queries.cols) + unsigned{kVector<T>} - 1) /
                            unsigned{kVector<T>});
  }
  __device__ unsigned window() const { return static_cast<unsigned>(queries.rows); }
  /// KV heads of a segment.
  __host__ __device__ int kv_heads() const { return partials.kv_heads; }
  /// Queries of all heads that share a KV head.
  __host__ __device__ int group_queries() const { return partials.group_queries; }
  /// The block's split.
  __device__ Split split() const {
    const unsigned first = blockIdx.z * static_cast<unsigned>(kv_heads());
    Split own = Splits(lengths, cache.entries + first, kv_heads()).at(blockIdx.x);
    own.kv_head += static_cast<int>(first);
    return own;
  }
  /// Blocks along x, for the splits of a segment's full cache; those behind the last split end at once.
  int64_t blocks() const { return partials.of_segment; }
  int64_t segments() const { return cache.segments; }
  /// The most tokens of a split, for any entries that fit the cache.
  int most_tokens() const { return static_cast<int>(lengths.tiles(kv_heads() * capacity)) * kTileTokens; }
};

/// Queues the kernel of the splits: attention_portable_kernel for fp32, attention_tma_kernel or
/// attention_mma_kernel for 16-bit types. The cache has room for an entry.
template <Storage T>
void attend_to_splits(const SplitArguments<T>& arguments, Stream stream);
template <>
void attend_to_splits(const SplitArguments<float>& arguments, Stream stream);

/// Whether attention_tma_kernel can do it, and its launch.
template <Storage16 T>
bool tma_can(const SplitArguments<T>& arguments);
template <Storage16 T>
void launch_tma(const SplitArguments<T>& arguments, Stream stream);

/// The arithmetic of these kernels; accumulation_depth: within a split of so many tokens.
template <Storage T>
KernelArithmetic split_arithmetic(int64_t tokens, int64_t head_dim);
template <>
KernelArithmetic split_arithmetic<float>(int64_t tokens, int64_t head_dim);

/// The arguments of attention_join_kernel.
struct JoinArguments {
  SplitLengths lengths;
  const int64_t* entries;
  int kv_heads;  ///< of all segments
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
