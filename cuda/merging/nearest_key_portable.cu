// The search for nearest keys by fp32 multiply-adds: any type, any device.
#include <kvbound/cuda/primitives/token_tile.hpp>
#include <kvbound/cuda/window/window_tiles.hpp>

#include "nearest_key_search.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace nearest_key_search {
namespace {

using namespace window_tiles;

constexpr int kRows = 4;
constexpr int kBlockRows = kRows * kRowLanes;
constexpr int kMostStages = 2;

struct Shared {
  uint4* tiles;  // [stages, tile] of kept keys
  float* rows;   // [kBlockRows, query_row]: leaving keys, divided by their lengths

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : tiles(memory.array<uint4>(shape.stages * tile_vectors(shape.vectors))),
        rows(memory.array<float>(shape.query_rows * shape.query_row)) {}
};

// Copies the directions of leaving keys first, first + 1, ... to shared memory; zeros behind the last.
template <Storage T>
__device__ void load_directions(const Arguments<T>& p, int64_t g, int64_t first, int count,
                                const Shape& shape, float* rows) {
  const auto head_dim = static_cast<int>(p.all.keys.cols);
  for (int n = static_cast<int>(threadIdx.x); n < kBlockRows * shape.query_row; n += kThreads) {
    const int r = n / shape.query_row, c = n % shape.query_row;
    float number = 0;
    if (r < count && c < head_dim) {
      const int64_t position = p.row_of(g, first + r);
      const float norm = p.all.norms[g * p.all.keys.rows + position];
      const T stored = p.all.keys.data[g * p.all.keys.slice_stride + position * p.all.keys.row_stride + c];
      number = norm > 0 ? to_float(stored) / norm : 0;
    }
    rows[n] = number;
  }
}

// The nearest kept keys of 32 leaving keys of a KV head: the kept keys are read by tiles of 64.
//
// grid       (ceil(most leaving / 32), kv_heads)
// block      128
// shared     1024 stages (v | 1) + 128 (row + 4) bytes, with v vectors of 16 bytes and `row` numbers in a
//            padded row; 51,712 for head_dim 128, BF16, 2 stages
// registers  96-128 (sm_90a), 96-124 (sm_80)
// bytes      read: 16 v for each kept key, again for each block, mostly from the L2 cache; head_dim sizeof(T)
//            for each leaving key; written: 12 for each leaving key
// FLOP       2 leaving kept head_dim
template <Storage T, bool kBetter>
__global__ void __launch_bounds__(kThreads, 4) nearest_keys_portable_kernel(Arguments<T> p, Shape shape) {
  SharedMemory memory;
  const Shared shared(memory, shape);
  const int64_t g = blockIdx.y, first = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const auto leaving = static_cast<int>(min(p.leaving_keys(g) - first, int64_t{kBlockRows}));
  if (leaving <= 0) return;
  const int64_t kept = p.kept_keys(g), tiles = ceil_division(kept, kTileTokens);
  const TokenRows rows(p.kept.keys, g);
  const auto load = [&](int64_t tile) {
    if (tile < tiles) {
      const auto count = static_cast<int>(min(kept - tile * kTileTokens, int64_t{kTileTokens}));
      rows.copy_to_tile(tile * kTileTokens, count,
                        shared.tiles + tile % shape.stages * tile_vectors(shape.vectors));
    }
    async_commit();
  };
  load(0);
  load_directions(p, g, first, leaving, shape, shared.rows);
  Best best[kRows];
  float own[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = Products<T, kRows>::row(r);
    own[r] = kBetter && row < leaving ? p.score(g, first + row) : 0;
  }
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (shape.stages == 1 && tile > 0) {
      __syncthreads();  // no thread reads the previous tile any more
      load(tile);
    }
    async_wait<0>();
    __syncthreads();  // all threads see the tile, and with two stages none reads the other any more
    if (shape.stages > 1) load(tile + 1);
    const Products<T, kRows> products(shared.tiles + tile % shape.stages * tile_vectors(shape.vectors),
                                      shared.rows, shape, 1);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int64_t index = tile * kTileTokens + products.token(t);
      if (index >= kept) continue;
      const float norm = p.kept.norms[g * p.kept.keys.rows + index];
      const float score = kBetter ? p.score(g, index) : 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (kBetter && !(score > own[r])) continue;
        best[r].offer(norm > 0 ? clamped(products.numbers[r][t] / norm) : 0, static_cast<int>(index));
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    best[r].join_lanes(kTokenLanes);
    const int row = Products<T, kRows>::row(r);
    if (threadIdx.x % kTokenLanes != 0 || row >= leaving) continue;
    p.write(g, first + row, best[r].index, best[r].cosine);
  }
}

}  // namespace

template <bool kBetter, Storage T>
void launch_portable(const Arguments<T>& arguments, Stream stream) {
  const DeviceTensor<const T>& kept = arguments.kept.keys;
  const auto with = [&](int tiles) { return Shape(kept, tiles, kBlockRows); };
  const Shape shape = first_that_fits<Shared>({with(kMostStages), with(1)});
  launch<nearest_keys_portable_kernel<T, kBetter>>(
      {extent(ceil_division(arguments.leaving_stride, kBlockRows), kept.slices), extent(kThreads),
       shared_bytes<Shared>(shape), stream},
      arguments, shape);
}
template void launch_portable<false>(const Arguments<float>&, Stream);
template void launch_portable<false>(const Arguments<Float16>&, Stream);
template void launch_portable<false>(const Arguments<Bfloat16>&, Stream);
template void launch_portable<true>(const Arguments<float>&, Stream);
template void launch_portable<true>(const Arguments<Float16>&, Stream);
template void launch_portable<true>(const Arguments<Bfloat16>&, Stream);

int64_t portable_product_depth(int64_t head_dim) { return window_tiles::product_depth(head_dim); }

}  // namespace nearest_key_search
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
