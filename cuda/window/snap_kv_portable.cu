// SnapKV's and H2O's scores by fp32 multiply-adds: fp32. Logits are formed as window_tiles.hpp says. In the
// heads of the kernels below, group = query_heads / kv_heads, query_rows = 8 kRows, and a padded row of keys
// has v vectors of 16 bytes, `row` numbers in all.
#include <kvbound/cuda/primitives/reduction.hpp>

#include "snap_kv_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace snap_kv_kernels {
namespace {

using namespace window_tiles;

constexpr int kMostStages = 2;
constexpr int kBlocks =
    4;  // that a multiprocessor must have registers for, of window_attention_portable_kernel

struct Shared {
  uint4* tiles;     // [stages, tile] of keys
  float* queries;   // [query_rows, query_row]
  float* partials;  // [kRowLanes, kTileTokens], in the memory of `queries`

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : tiles(memory.array<uint4>(shape.stages * tile_vectors(shape.vectors))),
        queries(memory.array<float>(max(shape.query_rows * shape.query_row, kRowLanes * kTileTokens))),
        partials(queries) {}
};

// A thread's sums of exp(z - largest) over its tokens, where largest is the thread's largest logit so far.
template <int kRows>
struct RunningSums {
  float largest[kRows], sums[kRows];

  __device__ RunningSums() : sums{} {
#pragma unroll
    for (float& entry : largest) entry = kNothing;
  }

  // visible  for each row the number of the split's tokens that it attends to
  // first    the tile's first token, counted in the split
  __device__ void add(const Products<float, kRows>& logits, int first, const int (&visible)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float most = largest[r];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (first + logits.token(t) < visible[r]) most = fmaxf(most, logits.numbers[r][t]);
      }
      float part = 0;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (first + logits.token(t) < visible[r]) part += expf(logits.numbers[r][t] - most);
      }
      sums[r] = (largest[r] == most ? sums[r] : sums[r] * expf(largest[r] - most)) + part;
      largest[r] = most;
    }
  }

  // Combines the sums of the 16 lanes that share their rows.
  __device__ void join_lanes() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float most = warp_max<kTokenLanes>(largest[r]);
      sums[r] = warp_sum<kTokenLanes>(largest[r] == most ? sums[r] : sums[r] * expf(largest[r] - most));
      largest[r] = most;
    }
  }
};

// For each of the thread's rows, how many of the `count` tokens from `first` on it attends to.
template <int kRows>
__device__ void visible_of_split(const Window<float>& window, int64_t first_row, int64_t first, int count,
                                 int (&visible)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t place = (first_row + Products<float, kRows>::row(r)) % window.size();
    const int64_t seen = window.visible(place) - first;
    visible[r] = static_cast<int>(max(int64_t{0}, min(seen, static_cast<int64_t>(count))));
  }
}

// The largest logit and the sum of exponentials over one split of the tokens, for query_rows
// queries of a KV head's group.
//
// grid       (ceil(group window / query_rows), ceil(tokens / split_tokens), kv_heads)
// block      128
// shared     1024 stages (v | 1) + 4 max(query_rows (row + 4), 512) bytes; 101,376 for
//            head_dim 128, kRows 8, 2 stages
// registers  kRows 4: 96, kRows 8: 128 (sm_90a); 96, 168 (sm_80)
// bytes      read: 16 v for each token and KV head, again for each block along x; the queries for each split;
//            written: 8 for each query and split
// FLOP       2 query_heads window tokens head_dim, and an exponential for each logit; tokens in a query's
//            future and rows beyond the last query cost products, too
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    window_log_sum_exp_portable_kernel(Window<float> window, Splits splits, SplitPartials partials,
                                       Shape shape) {
  SharedMemory memory;
  const Shared shared(memory, shape);
  const int64_t g = blockIdx.z;
  const int64_t rows = window.group_size() * window.size();
  const int64_t first_row = blockIdx.x * static_cast<int64_t>(shape.query_rows);
  const int64_t first = blockIdx.y * splits.tokens;
  const auto count = static_cast<int>(min(splits.tokens, window.tokens() - first));
  const TokenRows keys(window.keys, g);
  const auto load = [&](int tile) {
    if (tile * kTileTokens < count) {
      keys.copy_to_tile(first + tile * kTileTokens, min(kTileTokens, count - tile * kTileTokens),
                        shared.tiles + tile % shape.stages * tile_vectors(shape.vectors));
    }
    async_commit();
  };
  load(0);
  load_queries(window, g, first_row, static_cast<int>(min(rows - first_row, int64_t{kRows * kRowLanes})),
               shape, shared.queries);
  int visible[kRows];
  visible_of_split(window, first_row, first, count, visible);
  RunningSums<kRows> running;
  for (int tile = 0; tile * kTileTokens < count; ++tile) {
    if (shape.stages == 1 && tile > 0) {
      __syncthreads();  // no thread reads the previous tile any more
      load(tile);
    }
    async_wait<0>();
    __syncthreads();  // all threads see the tile, and with two stages none reads the other any more
    if (shape.stages > 1) load(tile + 1);
    const Products<float, kRows> logits(shared.tiles + tile % shape.stages * tile_vectors(shape.vectors),
                                        shared.queries, shape, window.scale);
    running.add(logits, tile * kTileTokens, visible);
  }
  running.join_lanes();
  if (threadIdx.x % kTokenLanes != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first_row + Products<float, kRows>::row(r);
    if (row >= rows) break;
    partials.write(blockIdx.y, g * rows + row, running.largest[r], running.sums[r]);
  }
}

// Adds the weights exp(z - log-sum-exp) of the thread's rows, of queries first,
// first + 1, ... of one query head.
template <int kRows>
__device__ void add_weights(const Window<float>& window, const Products<float, kRows>& logits, int64_t first,
                            int64_t first_token, const float* log_sum_exp, float (&sums)[kTokens]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t place = first + logits.row(r);
    if (place >= window.size()) break;
    const float log_sum = log_sum_exp[place];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (first_token + logits.token(t) < window.visible(place))
        sums[t] += expf(logits.numbers[r][t] - log_sum);
    }
  }
}

// The window's mean or summed attention to one tile of tokens, for all query heads of its KV
// head, one after the other.
//
// grid       (ceil(tokens / 64), kv_heads)
// block      128
// shared     1024 (v | 1) + 4 max(query_rows (row + 4), 512) bytes; 50,688 for head_dim 128, kRows 4
// registers  kRows 4: 96, kRows 8: 123 (sm_90a and sm_80)
// bytes      read: 16 v for each token and KV head; the group's queries and log-sum-exp for each block,
//            mostly from the L2 cache; written: 4 query_heads tokens
// FLOP       2 query_heads window tokens head_dim, and an exponential for each logit; rows up to a multiple
//            of query_rows cost products, too
template <int kRows>
__global__ void __launch_bounds__(kThreads, kBlocks)
    window_attention_portable_kernel(Window<float> window, const float* log_sum_exp, float divisor,
                                     float* weights, Shape shape) {
  SharedMemory memory;
  const Shared shared(memory, shape);
  const int64_t g = blockIdx.y;
  const int64_t first_token = blockIdx.x * static_cast<int64_t>(kTileTokens);
  const auto count = static_cast<int>(min(int64_t{kTileTokens}, window.tokens() - first_token));
  const auto thread = static_cast<int>(threadIdx.x);
  TokenRows(window.keys, g).copy_to_tile(first_token, count, shared.tiles);
  async_commit();
  async_wait<0>();
  for (int64_t h = 0; h < window.group_size(); ++h) {
    const int64_t head = g * window.group_size() + h;
    float sums[kTokens] = {};
    for (int64_t first = 0; first < window.size(); first += shape.query_rows) {
      __syncthreads();  // all threads see the keys, and none reads the previous queries any more
      load_queries(window, g, h * window.size() + first,
                   static_cast<int>(min(window.size() - first, static_cast<int64_t>(shape.query_rows))),
                   shape, shared.queries);
      __syncthreads();
      const Products<float, kRows> logits(shared.tiles, shared.queries, shape, window.scale);
      add_weights(window, logits, first, first_token, log_sum_exp + head * window.size(), sums);
    }
    const int row_lane = thread / kTokenLanes;
    __syncthreads();  // no thread reads the queries any more
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      shared.partials[row_lane * kTileTokens + Products<float, kRows>::token(t)] = sums[t];
    }
    __syncthreads();
    if (thread >= count) continue;
    const float sum = sum_of_row_lanes(shared.partials, thread);
    weights[head * window.tokens() + first_token + thread] = sum / divisor;
  }
}

constexpr int kFewRows = 4, kManyRows = 8;  // queries of a thread

// The first shape that fits into shared memory: many rows or few, and up to `stages` tiles at a
// time; where memory is short, fewer tiles, then fewer rows. Neither changes the order of a sum, so
// results are the same bits.
Shape shape_that_fits(const Window<float>& window, bool many, int stages) {
  const auto with = [&](int rows, int tiles) { return Shape(window.keys, tiles, rows * kRowLanes); };
  const int rows = many ? kManyRows : kFewRows;
  return first_that_fits<Shared>(
      {with(rows, stages), with(rows, 1), with(kFewRows, stages), with(kFewRows, 1)});
}

}  // namespace

void launch_splits_portable(const Window<float>& window, const Splits& splits, const SplitPartials& partials,
                            Stream stream) {
  const int64_t rows = window.group_size() * window.size();
  const Shape shape = shape_that_fits(window, rows > kFewRows * kRowLanes, kMostStages);
  const LaunchShape blocks{extent(ceil_division(rows, shape.query_rows), splits.count, window.keys.slices),
                           dim3(kThreads), shared_bytes<Shared>(shape), stream};
  if (shape.query_rows == kManyRows * kRowLanes) {
    launch<window_log_sum_exp_portable_kernel<kManyRows>>(blocks, window, splits, partials, shape);
  } else {
    launch<window_log_sum_exp_portable_kernel<kFewRows>>(blocks, window, splits, partials, shape);
  }
}

void launch_attention_portable(const Window<float>& window, const float* log_sum_exp,
                               WindowReduction reduction, float* weights, Stream stream) {
  const Shape shape = shape_that_fits(window, window.size() > kFewRows * kRowLanes, 1);
  const LaunchShape blocks{extent(ceil_division(window.tokens(), kTileTokens), window.keys.slices),
                           dim3(kThreads), shared_bytes<Shared>(shape), stream};
  const float divisor = divisor_of(reduction, window.size());
  if (shape.query_rows == kManyRows * kRowLanes) {
    launch<window_attention_portable_kernel<kManyRows>>(blocks, window, log_sum_exp, divisor, weights, shape);
  } else {
    launch<window_attention_portable_kernel<kFewRows>>(blocks, window, log_sum_exp, divisor, weights, shape);
  }
}

// A thread adds the four tokens of a tile, then the tiles; a tree adds sixteen lanes.
int64_t portable_split_depth(int64_t tokens) {
  return (kTokens - 1) + ceil_division(tokens, kTileTokens) + 4;
}

// At every tile but the first, and where lanes are combined.
int64_t portable_split_rescalings(int64_t tokens) { return ceil_division(tokens, kTileTokens); }

}  // namespace snap_kv_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
