// Decode attention to the splits of a cache by mma.sync, whose tiles TMA brings: 16-bit types, head_dim 64
// and 128, compute capability 9.0 and later.
//
// As attention_mma.cu, bit by bit, but that one thread requests a whole tile, and that no barrier of the
// block stands between two tiles of keys or of values: a warp waits for a tile to land (`full`), and the
// thread that requests the next one into a stage for all warps to have left that stage (`empty`).
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/row_boxes.hpp>

#include "attention_mma.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {
namespace {

using namespace attention_mma;

// Stages of a block: as many as leave room for four blocks of a multiprocessor of an H200, whose logits take
// more of shared memory where splits are longer.
constexpr int kFewStages = 2, kManyStages = 3, kManyTokens = 128;
constexpr int kBoxVectors = 8;                       // of a row: 128 bytes, what the swizzle permutes
constexpr int kBoxSize = kTileTokens * kBoxVectors;  // vectors

// The tensors that tiles are boxes of.
struct Maps {
  TensorMap keys, values;
};

// Tiles that TMA copies, of boxes that lie one behind the other: vector v of row r of a box is its vector
// v ^ r % 8 in shared memory.
template <int kSteps, int kStages>
struct StreamedTiles {
  static constexpr int kBoxes = kVectors<kSteps> / kBoxVectors;
  static constexpr int kStage = kBoxes * kBoxSize;

  struct Memory {
    uint4* stages;
    uint64_t* full;   // [stages]: the tile has landed
    uint64_t* empty;  // [stages]: all warps have left the tile

    __host__ __device__ Memory(SharedMemory& memory, int /* Shape's: kStages */)
        : stages(memory.array<uint4>(kStages * kStage, 1024)),
          full(memory.array<uint64_t>(kStages)),
          empty(memory.array<uint64_t>(kStages)) {
      static_assert(kWarps * kHeads * kSumRow<kSteps> * sizeof(float) <= kStages * kStage * sizeof(uint4));
    }
  };

  const Memory& memory;
  const Maps& maps;
  const PageTable& pages;
  int g, first, count;  // KV head, tokens
  int of_keys;          // tiles

  __device__ StreamedTiles(const Maps& of_cache, const PageTable& of_rows, const Split& split,
                           const Memory& of_block)
      : memory(of_block),
        maps(of_cache),
        pages(of_rows),
        g(split.kv_head),
        first(split.first),
        count(split.tokens),
        of_keys(tiles_of(split.tokens)) {}

  // The first tile is on its way before the other mbarriers are there. The other threads see them behind the
  // barrier of the queries.
  __device__ void begin() const {
    if (threadIdx.x != 0) return;
    mbarrier_init(memory.full, 1);
    mbarrier_fence_init();
    request(0);
    for (int n = 0; n < kStages; ++n) {
      if (n > 0) mbarrier_init(memory.full + n, 1);
      mbarrier_init(memory.empty + n, kWarps);
    }
    mbarrier_fence_init();
#pragma unroll 1  // unrolled, what they compute would precede the first one
    for (int n = 1; n < min(kStages, 2 * of_keys); ++n) request(n);
  }

  // Before, the stage that was left last is requested anew.
  __device__ const uint4* next(int n) const {
    const int left = n - 1, wanted = left + kStages;
    if (threadIdx.x == 0 && n > 0 && wanted < 2 * of_keys) {
      mbarrier_wait(memory.empty + stage(left), phase(left));
      request(wanted);
    }
    mbarrier_wait(memory.full + stage(n), phase(n));
    uint4* const tile = memory.stages + stage(n) * kStage;
    if (n >= of_keys) clear_behind(tile, count - (n - of_keys) * kTileTokens);
    return tile;
  }

  __device__ void leave(int n) const {
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(memory.empty + stage(n));
  }

  // The exclusive or of 2 step is the last one, so that one place serves for all steps.
  __device__ const uint4* vector(const uint4* tile, int row, int step, int half) const {
    const int place = row * kBoxVectors + (half ^ row % kBoxVectors);
    return tile + 2 * step / kBoxVectors * kBoxSize + (place ^ 2 * step % kBoxVectors);
  }

 private:
  // Of the n-th tile, and the phase of its mbarriers.
  __device__ static unsigned stage(int n) { return static_cast<unsigned>(n) % kStages; }
  __device__ static unsigned phase(int n) { return static_cast<unsigned>(n) / kStages % 2; }

  // Requests the n-th tile. What lies behind the KV head's last row, or page, is zero; what lies behind the
  // split's last token is what the cache has there.
  __device__ void request(int n) const {
    uint64_t* const full = memory.full + stage(n);
    const bool is_key = n < of_keys;
    const int row = first + (is_key ? n : n - of_keys) * kTileTokens;
    const RowPlace place = place_of(pages, g, row);
    mbarrier_arrive_expect(full, kStage * static_cast<int>(sizeof(uint4)));
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      load_box(memory.stages + stage(n) * kStage + box * kBoxSize, is_key ? maps.keys : maps.values, full,
               box * kBoxColumns, static_cast<int>(place.row), static_cast<int>(place.slice));
    }
  }

  // Sets the rows of the warp's 16 tokens behind the last one to zero: 0 times what lies there may be NaN.
  //
  // tokens  of the tile and those behind it
  __device__ void clear_behind(uint4* tile, int tokens) const {
    const int begin = warp() * kTile, exist = tokens - begin;
    if (exist <= 0 || exist >= kTile) return;
#pragma unroll 1
    for (int i = lane(); i < (kTile - exist) * kVectors<kSteps>; i += 32) {
      const int row = begin + exist + i / kVectors<kSteps>, column = i % kVectors<kSteps>;
      tile[column / kBoxVectors * kBoxSize + row * kBoxVectors + column % kBoxVectors] = uint4{0, 0, 0, 0};
    }
    __syncwarp();
  }
};

// As attention_mma_kernel, whose bits its results are.
//
// grid       as attention_mma_kernel's
// block      128
// shared     128 head_dim stages + 16 heads (2 kSteps + 1) + 4 heads (split_tokens + 8) + 928 bytes, 960
//            of 3 stages; for head_dim 128 and 4 heads 43,104, of splits of up to 128 tokens 53,376
// registers  at most, kHeadTiles 1: 60, 77 (kSteps 4, 8), 2: 104, 140 (sm_90a); no code for sm_80
// bytes      as attention_mma_kernel's, but that a KV head's last tiles are read whole: up to 63 rows more of
//            keys and of values, as far as the cache has them
// FLOP       as attention_mma_kernel's
template <Storage16 T, int kSteps, int kHeadTiles, int kStages>
__global__ void __launch_bounds__(kThreads)
    attention_tma_kernel(const __grid_constant__ Maps maps, SplitArguments<T> p, Shape shape) {
  using Tiles = StreamedTiles<kSteps, kStages>;
  begin_dependent_launch();
  SharedMemory memory;
  const Shared<Tiles, T, kSteps> shared(memory, shape);
  const Split split = p.split();
  if (split.tokens == 0) return;
  const Work<Tiles, T, kSteps, kHeadTiles> work(p, shared, shape, split,
                                                Tiles(maps, p.cache.pages, split, shared.tiles));
  if (p.has_work(split, work.first_head, work.heads)) attend(work);
}

template <int kSteps, int kHeadTiles, int kStages, Storage16 T>
void launch_with(const SplitArguments<T>& arguments, Stream stream) {
  const Shape shape{kStages, std::min(arguments.group_queries(), kHeadTiles * kHeads),
                    arguments.most_tokens()};
  launch_dependent<attention_tma_kernel<T, kSteps, kHeadTiles, kStages>>(
      {extent(arguments.blocks(), ceil_division(arguments.group_queries(), kHeadTiles * kHeads),
              arguments.segments()),
       dim3(kThreads), shared_bytes<Shared<StreamedTiles<kSteps, kStages>, T, kSteps>>(shape), stream},
      Maps{row_boxes(arguments.cache.keys, kTileTokens), row_boxes(arguments.cache.values, kTileTokens)},
      arguments, shape);
}

template <int kSteps, int kHeadTiles, Storage16 T>
void launch_with(const SplitArguments<T>& arguments, Stream stream) {
  if (arguments.most_tokens() <= kManyTokens)
    return launch_with<kSteps, kHeadTiles, kManyStages>(arguments, stream);
  launch_with<kSteps, kHeadTiles, kFewStages>(arguments, stream);
}

template <int kSteps, Storage16 T>
void launch_with(const SplitArguments<T>& arguments, Stream stream) {
  if (arguments.group_queries() > kHeads) return launch_with<kSteps, 2>(arguments, stream);
  launch_with<kSteps, 1>(arguments, stream);
}

}  // namespace

template <Storage16 T>
bool tma_can(const SplitArguments<T>& arguments) {
  const DeviceInfo& info = device();
  const int64_t head_dim = arguments.cache.keys.cols;
  const bool has_instance = head_dim == 64 || head_dim == 128;
  if (!info.has_clusters || !has_instance || !has_row_boxes(arguments.cache.keys) ||
      !has_row_boxes(arguments.cache.values)) {
    return false;
  }
  const Shape most{kManyStages, kMostHeadTiles * kHeads, arguments.most_tokens()};
  return shared_bytes<Shared<StreamedTiles<8, kManyStages>, T, 8>>(most) <= info.shared_memory_per_block;
}

template <Storage16 T>
void launch_tma(const SplitArguments<T>& arguments, Stream stream) {
  if (arguments.cache.keys.cols == 64) return launch_with<4>(arguments, stream);
  launch_with<8>(arguments, stream);
}

template bool tma_can(const SplitArguments<Float16>&);
template bool tma_can(const SplitArguments<Bfloat16>&);
template void launch_tma(const SplitArguments<Float16>&, Stream);
template void launch_tma(const SplitArguments<Bfloat16>&, Stream);

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
