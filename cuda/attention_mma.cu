// Decode attention to the splits of a cache by mma.sync, whose tiles the block's threads copy: 16-bit types,
// any head_dim, compute capability 8.0.
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/row_fragments.hpp>

#include "attention_mma.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {
namespace {

using namespace attention_mma;

constexpr int kMostStages = 2;

// Tiles that all threads copy, of rows with an odd number of vectors.
template <Storage16 T, int kSteps>
struct CopiedTiles {
  static constexpr int kRow = tile_row_vectors(kVectors<kSteps>);

  struct Memory {
    uint4* stages;

    __host__ __device__ Memory(SharedMemory& memory, int count)
        : stages(memory.array<uint4>(count * tile_vectors(kVectors<kSteps>))) {
      static_assert(kWarps * kHeads * kSumRow<kSteps> * sizeof(float) <=
                    tile_vectors(kVectors<kSteps>) * sizeof(uint4));
    }
  };

  uint4* stages;
  int stage_count;
  const SplitArguments<T>& p;
  int g, first, count;  // KV head, tokens
  int of_keys;          // tiles

  __device__ CopiedTiles(const SplitArguments<T>& arguments, const Split& split, const Memory& memory,
                         int shape_stages)
      : stages(memory.stages),
        stage_count(shape_stages),
        p(arguments),
        g(split.kv_head),
        first(split.first),
        count(split.tokens),
        of_keys(tiles_of(split.tokens)) {}

  __device__ void begin() const { load(p.keys, 0, stage(0)); }

  // With two stages it then starts the copy of the next tile, into the stage that no thread reads any more.
  __device__ const uint4* next(int n) const {
    if (n > 0) {  // the first one has landed with the queries
      if (stage_count == 1) {
        __syncthreads();  // no thread reads the previous tile any more
        load(n);
      }
      async_wait<0>();
      __syncthreads();
    }
    if (stage_count > 1 && n + 1 < 2 * of_keys) load(n + 1);
    return stage(n);
  }

  __device__ void leave(int) const {}  // the next tile's barrier shows it

  __device__ const uint4* vector(const uint4* tile, int row, int step, int half) const {
    return tile + row * kRow + half + 2 * step;
  }

 private:
  __device__ uint4* stage(int n) const { return stages + n % stage_count * tile_vectors(kVectors<kSteps>); }

  // Starts to copy the n-th tile: tiles of keys come first, then tiles of values.
  __device__ void load(int n) const {
    const bool is_key = n < of_keys;
    load(is_key ? p.keys : p.values, is_key ? n : n - of_keys, stage(n));
  }

  // Starts to copy a tile of rows. Zeros behind the last token, as far as a warp multiplies, and behind
  // head_dim.
  __device__ void load(const CacheVectors& rows, int tile, uint4* to) const {
    constexpr int kColumns = power_of_two_above(kVectors<kSteps>, 64);
    constexpr int kRowsAtOnce = kThreads / kColumns;
    const int begin = tile * kTileTokens;
    const auto column = static_cast<int>(threadIdx.x % kColumns),
               row = static_cast<int>(threadIdx.x / kColumns);
    if (column < kVectors<kSteps>) {
      const RowPlace tile_begin = place_of(p.cache.pages, g, first + begin);
      const uint4* from = rows.at({tile_begin.slice, tile_begin.row + static_cast<unsigned>(row)}) + column;
      to += row * kRow + column;
      const int wanted = min(kTileTokens, (count - begin + kTile - 1) & -kTile);
#pragma unroll 1  // unrolled, its addresses would take too many registers
      for (int r = row; r < wanted; r += kRowsAtOnce) {
        const bool inside = begin + r < count && column < p.head_vectors();
        async_copy16(to, inside ? from : rows.data, inside ? 16 : 0);
        from += kRowsAtOnce * int64_t{rows.row_stride};
        to += kRowsAtOnce * kRow;
      }
    }
    async_commit();
  }
};

// Logits, weights and weighted values of one split of a KV head's entries.
//
//                        64 tokens
//       keys      | warp 0 | 1 | 2 | 3 |   [16 tokens x head_dim] [head_dim x 8 heads]   ->  z: shared memory
//       values    | warp 0 | 1 | 2 | 3 |   [head_dim x 16 tokens] [16 tokens x 8 heads]  ->  sums: registers
//
//       all tiles of keys, then all of values; then the four warps' sums are added
//
// grid       (splits of a segment's full cache, at most max(528, kv_heads capacity / 512) + kv_heads with its
//            kv_heads; ceil(group / (8 kHeadTiles)); segments); group = queries / kv_heads; blocks behind the
//            last split end at once, and those without anything to do
// block      128
// shared     (1,024 stages + 16 heads) (2 kSteps + 1) + 4 heads (split_tokens + 8) + 896 bytes;
//            heads = min(group, 8 kHeadTiles); for head_dim 128, 4 heads and splits of 512 tokens: 45,120
// registers  at most, sm_90a and sm_80: kHeadTiles 1: 69, 71, 66, 85, 103, 141 (kSteps 4, 5, 6, 8, 12, 16);
//            kHeadTiles 2: 105, 105, 101, 137, 180 (up to 12)
// bytes      read: 4 head_dim a token, its keys and values, once for each block along y; queries and log
//            votes; written: 4 row + 16 for each query and split, 4 for each logit if wanted; the segment's
//            entries in every block, and the queries' dominant rows where they are left out
// FLOP       256 kSteps (1 + parts) a token for each tile of 8 heads, in tensor cores; an exponential
//            for each query and entry
template <Storage16 T, int kSteps, int kHeadTiles>
__global__ void __launch_bounds__(kThreads) attention_mma_kernel(SplitArguments<T> p, Shape shape) {
  using Tiles = CopiedTiles<T, kSteps>;
  begin_dependent_launch();
  SharedMemory memory;
  const Shared<Tiles, T, kSteps> shared(memory, shape);
  const Split split = p.split();
  if (split.tokens == 0) return;
  const Work<Tiles, T, kSteps, kHeadTiles> work(p, shared, shape, split,
                                                Tiles(p, split, shared.tiles, shape.stages));
  if (p.has_work(split, work.first_head, work.heads)) attend(work);
}

// Where shared memory is short a block has one tile at a time, which does not change the order of a sum.
template <int kSteps, int kHeadTiles, Storage16 T>
void launch_with(const SplitArguments<T>& arguments, Stream stream) {
  const auto with = [&](int stages) {
    return Shape{stages, std::min(arguments.group_queries(), kHeadTiles * kHeads), arguments.most_tokens()};
  };
  const auto shape = first_that_fits<Shared<CopiedTiles<T, kSteps>, T, kSteps>>({with(kMostStages), with(1)});
  launch_dependent<attention_mma_kernel<T, kSteps, kHeadTiles>>(
      {extent(arguments.blocks(), ceil_division(arguments.group_queries(), kHeadTiles * kHeads),
              arguments.segments()),
       dim3(kThreads), shared_bytes<Shared<CopiedTiles<T, kSteps>, T, kSteps>>(shape), stream},
      arguments, shape);
}

// Two tiles of heads with more than 192 numbers do not fit into a thread's registers.
template <int kSteps, Storage16 T>
void launch_with(const SplitArguments<T>& arguments, Stream stream) {
  if constexpr (kSteps <= 12) {
    if (arguments.group_queries() > kHeads) return launch_with<kSteps, 2>(arguments, stream);
  }
  launch_with<kSteps, 1>(arguments, stream);
}

}  // namespace

template <Storage T>
void attend_to_splits(const SplitArguments<T>& arguments, Stream stream) {
  if (!arguments.copies_tiles && tma_can(arguments)) return launch_tma(arguments, stream);
  with_row_steps(arguments.cache.keys.cols, [&](auto steps) { launch_with<steps>(arguments, stream); });
}
template void attend_to_splits(const SplitArguments<Float16>&, Stream);
template void attend_to_splits(const SplitArguments<Bfloat16>&, Stream);

// A lane adds up four weights for each tile, or two sums of 8 tokens; then two lanes' pairs,
// then two pairs of warps.
template <Storage T>
KernelArithmetic split_arithmetic(int64_t tokens, int64_t head_dim) {
  return {.precision = Precision::fp32,
          .accumulation_depth = 2 + ceil_division(tokens, kTileTokens) + 2 + 2,
          .product_depth = ceil_division(head_dim, kTile) + 1,
          .tensor_sums = kShortTensorSums,
          .tensor_weighted_sums = WeightParts<T>::kSums,
          .weights_floor = WeightParts<T>::kFloor};
}
template KernelArithmetic split_arithmetic<Float16>(int64_t, int64_t);
template KernelArithmetic split_arithmetic<Bfloat16>(int64_t, int64_t);

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
