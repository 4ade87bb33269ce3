// What a window's kernels by wgmma have in common: the pieces of work that their blocks take one after the
// other, and the queries and keys of these in shared memory. 16-bit types, head_dim 64 and 128, windows of up
// to 128 queries, compute capability 9.0.
//
// A block is a producer and two consumers (primitives/warp_specialisation.hpp). The producer lets TMA copy
// the queries of an item's heads to shared memory, 128 in parts of 32 as snap_kv_mma.cu has them, and then
// the keys of a split of the tokens, tile by tile. The blocks stay and take items one after the other: a
// split of the tokens of one KV head, with as many of its query heads as have room. How items are distributed
// does not change a bit of the results.
#pragma once

#include <kvbound/cuda/primitives/row_boxes.hpp>
#include <kvbound/cuda/primitives/warp_specialisation.hpp>
#include <kvbound/cuda/primitives/warpgroup_mma.hpp>

#include "query_parts.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace window_items {

using namespace window_tiles;

inline constexpr int kParts = 4;  ///< of an item's queries
inline constexpr int kPartRows = 32;
inline constexpr int kQueries = kParts * kPartRows;
inline constexpr int kDepth = 16;  ///< numbers of a row that an instruction takes
inline constexpr int kBoxKeys = 64;

/// What is divided into items, and how. A head has 1, 2 or 4 parts, 2^head_shift, for windows of up to 32,
/// 64, 128 queries.
template <Storage16 T>
struct Work {
  Window<T> window;
  float scale;  ///< to base 2
  int split_tokens, splits;
  int head_shift, item_heads;
  int split_items;  ///< which have a split's query heads
  int items;

  /// tokens_of_split  a multiple of kBoxKeys, or all
  Work(const Window<T>& of, int64_t tokens_of_split)
      : window(of),
        scale(binary_scale(of)),
        split_tokens(static_cast<int>(tokens_of_split)),
        splits(static_cast<int>(ceil_division(of.tokens(), tokens_of_split))),
        head_shift(static_cast<int>(of.size() > kPartRows) + static_cast<int>(of.size() > 2 * kPartRows)),
        item_heads(kParts >> head_shift),
        split_items(static_cast<int>(ceil_division(of.group_size(), item_heads))),
        items(static_cast<int>(of.keys.slices) * splits * split_items) {}
};

/// A block's next piece of work.
struct Item {
  int g, split, first;  ///< KV head, token
  int tokens;
  int seen;   ///< tokens that all queries attend to
  int head;   ///< of the first part
  int parts;  ///< that exist
  int shift;  ///< Work::head_shift

  template <Storage16 T>
  __device__ Item(const Work<T>& work, int number) : shift(work.head_shift) {
    const auto n = static_cast<unsigned>(number), all = n / work.split_items;
    const int of_group = static_cast<int>(n % work.split_items) * work.item_heads;
    const int group = static_cast<int>(work.window.group_size());
    g = static_cast<int>(all / work.splits);
    split = static_cast<int>(all % work.splits);
    first = split * work.split_tokens;
    tokens = min(work.split_tokens, static_cast<int>(work.window.tokens()) - first);
    seen = max(0, min(static_cast<int>(work.window.visible(0)) - first, tokens));
    head = g * group + of_group;
    parts = min(work.item_heads, group - of_group) << shift;
  }
  __device__ QueryPart part(int n) const { return {head + (n >> shift), of_head(n) * kPartRows, n < parts}; }
  /// Of a part, its number among its head's.
  __device__ int of_head(int n) const { return n & ((1 << shift) - 1); }
};

struct Maps {
  TensorMap queries, keys;

  template <Storage16 T>
  explicit Maps(const Window<T>& window)
      : queries(row_boxes(window.queries, kPartRows)), keys(row_boxes(window.keys, kBoxKeys)) {}
};

/// The stages of a consumer's tiles, every other one of a ring: it waits for every phase of their mbarriers,
/// whichever tiles of an item it has.
template <int kStages>
struct OwnStages {
  static_assert(kConsumers == 2 && kStages % kConsumers == 0);
  int consumer;
  StageRing<kStages / kConsumers> ring = {};

  __device__ int stage() const { return ring.stage * kConsumers + consumer; }
};

/// Queries and keys in shared memory, as boxes of 64 columns. With two sets of queries, those of the next
/// item land while an item's are multiplied.
template <int kHeadDim, int kTileKeys, int kStages, int kQuerySets>
struct Tiles {
  static constexpr int kBoxes = kHeadDim / kBoxColumns;
  static constexpr int kStageSize = kHeadDim * kTileKeys, kSetSize = kHeadDim * kQueries;
  static constexpr int kTileBoxes = kTileKeys / kBoxKeys;  // above each other

  uint16_t* stages;   ///< [kStages, kBoxes, kTileKeys, kBoxColumns], permuted by the swizzle
  uint16_t* queries;  ///< [kQuerySets, kBoxes, kQueries, kBoxColumns], permuted, too
  uint64_t* full;     ///< [kStages]: the keys have landed
  uint64_t* empty;    ///< [kStages]: all warps that multiply them have done so
  uint64_t* given;    ///< [kQuerySets]: the queries have landed, and what else belongs to them is there
  uint64_t* taken;    ///< [kQuerySets]: all warps of the consumers have left them

  __host__ __device__ explicit Tiles(SharedMemory& memory)
      : stages(memory.array<uint16_t>(kStages * kStageSize, 1024)),
        queries(memory.array<uint16_t>(kQuerySets * kSetSize, 1024)),
        full(memory.array<uint64_t>(kStages)),
        empty(memory.array<uint64_t>(kStages)),
        given(memory.array<uint64_t>(kQuerySets)),
        taken(memory.array<uint64_t>(kQuerySets)) {}

  /// multiplying  warps that multiply a tile
  /// giving       arrivals behind which an item's queries are given, that of request_queries among them
  __device__ void begin(int multiplying, int giving) const {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        mbarrier_init(full + stage, 1);
        mbarrier_init(empty + stage, multiplying);
      }
      for (int set = 0; set < kQuerySets; ++set) {
        mbarrier_init(given + set, giving);
        mbarrier_init(taken + set, kConsumerWarps);
      }
      mbarrier_fence_init();
    }
    __syncthreads();
  }

  /// Tiles of an item.
  __device__ static int count(const Item& item) { return (item.tokens + kTileKeys - 1) / kTileKeys; }
  __device__ const uint16_t* query_set(int set) const { return queries + set * kSetSize; }
  __device__ const uint16_t* tile(int stage) const { return stages + stage * kStageSize; }

  /// Requests the queries of an item, by one thread.
  __device__ void request_queries(const Item& item, const TensorMap& map, int set) const {
    uint16_t* to = queries + set * kSetSize;
    mbarrier_arrive_expect(given + set, kSetSize * 2);
    for (int box = 0; box < kBoxes; ++box) {
      for (int p = 0; p < kParts; ++p, to += kPartRows * kBoxColumns) {
        const QueryPart part = item.part(p);
        load_box(to, map, given + set, box * kBoxColumns, part.first, static_cast<int>(part.head));
      }
    }
  }

  /// Requests a tile of an item, by one thread, as soon as its memory is free. What lies behind the item's
  /// last box of 64 keys is what the memory held before.
  __device__ void request_tile(const Item& item, int tile, const TensorMap& map, int stage,
                               unsigned phase) const {
    uint16_t* to = stages + stage * kStageSize;
    const int first = tile * kTileKeys;
    const int boxes = min(kTileBoxes, (item.tokens - first + kBoxKeys - 1) / kBoxKeys);
    mbarrier_wait(empty + stage, phase ^ 1);
    mbarrier_arrive_expect(full + stage, boxes * kBoxKeys * kHeadDim * 2);
    for (int column = 0; column < kHeadDim; column += kBoxColumns, to += kTileKeys * kBoxColumns) {
      for (int box = 0; box < boxes; ++box) {
        load_box(to + box * kBoxKeys * kBoxColumns, map, full + stage, column,
                 item.first + first + box * kBoxKeys, item.g);
      }
    }
  }
};

/// Begins sums = A B + (add ? sums : 0), of 64 rows of A and 128 of B: rows of numbers in boxes of kRowsA and
/// kRowsB rows.
template <int kHeadDim, int kRowsA, int kRowsB, Storage16 T>
__device__ void begin_product(float (&sums)[kWarpgroupSums], const uint16_t* a, const uint16_t* b,
                              bool add = false) {
  constexpr int kSteps = kBoxColumns / kDepth;  // of a box
  constexpr int kGroupBytes = 8 * kBoxColumns * 2;
#pragma unroll
  for (int step = 0; step < kHeadDim / kDepth; ++step) {
    const int column = step % kSteps * kDepth, box = step / kSteps;
    warpgroup_mma<T>(sums, matrix_descriptor(a + box * kRowsA * kBoxColumns + column, kGroupBytes),
                     matrix_descriptor(b + box * kRowsB * kBoxColumns + column, kGroupBytes),
                     add || step > 0);
  }
}

/// sums = A B, which are complete behind it.
template <int kHeadDim, int kRowsA, int kRowsB, Storage16 T>
__device__ void multiply(float (&sums)[kWarpgroupSums], const uint16_t* a, const uint16_t* b) {
  warpgroup_fence(sums);
  begin_product<kHeadDim, kRowsA, kRowsB, T>(sums, a, b);
  warpgroup_commit();
  warpgroup_wait<0>(sums);
}

/// A part's queries are columns of a product, and a warp's 16 tokens rows, as of mma's C operands.
using ItemProducts = PartProducts<kPartRows / kFragmentRows>;

__device__ inline ItemProducts part_of(const float (&sums)[kWarpgroupSums], int part) {
  constexpr int kNumbers = kWarpgroupSums / kParts;
  ItemProducts products;
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) products.numbers[i / 4][i % 4] = sums[part * kNumbers + i];
  return products;
}

/// Writes `factor` times the sums over each head's queries that a warp has of 16 tokens.
///
/// token   the first, of the split
/// rows    [query_heads, tokens]
/// sum_of  of a part's queries, by its number: as sum_over_queries returns it
template <Storage16 T, class SumOf>
__device__ void write_sums(const Work<T>& work, const Item& item, int token, float factor, float* rows,
                           const SumOf& sum_of) {
  const int own = token + ItemProducts::token(lane() % 2);
  float* to = rows + item.head * work.window.tokens() + (item.first + own);
  float sum = 0;  // over the parts of a head
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    if (p >= item.parts) break;
    const float of_part = sum_of(p);
    sum = item.of_head(p) == 0 ? of_part : sum + of_part;
    if (item.of_head(p + 1) != 0) continue;
    if (lane() % 4 < 2 && own < item.tokens) *to = sum * factor;
    to += work.window.tokens();
  }
}

/// Calls launch(head_dim, blocks) with a constant for the window's head_dim.
template <Storage16 T, class Launch>
void with_head_dim(const Work<T>& work, const Launch& launch) {
  const dim3 blocks = extent(std::min(device().multiprocessors, work.items));
  if (work.window.keys.cols == 64) return launch(std::integral_constant<int, 64>(), blocks);
  launch(std::integral_constant<int, 128>(), blocks);
}

}  // namespace window_items
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
