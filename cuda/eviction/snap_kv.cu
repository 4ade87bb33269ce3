// SnapKV's and H2O's scores. Logits are formed as window_tiles.hpp says. In the heads of the kernels below,
// group = query_heads / kv_heads, query_rows = 8 kRows, and a padded row of keys has v vectors of 16 bytes, `row` numbers
// in all.
#include "snap_kv.hpp"

#include <algorithm>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>
#include <kvbound/cuda/primitives/tile_variants.hpp>
#include <kvbound/cuda/primitives/token_tile.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "snap_kv_variants.hpp"
#include "window_check.hpp"
#include "window_tiles.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using namespace window_tiles;

constexpr int kMostStages = 2;
constexpr int64_t kMostSplitTokens = 512;
constexpr int64_t kSplitsWanted = 64;
constexpr int kJoinWarps = 4;

// How the tokens of a prompt are split for window_log_sum_exp.
struct Splits {
  int64_t tokens;  // of one split
  int64_t count;

  explicit Splits(int64_t all)
      : tokens(std::clamp(round_up(ceil_division(all, kSplitsWanted), kTileTokens), int64_t{kTileTokens},
                          kMostSplitTokens)),
        count(ceil_division(all, tokens)) {}
};

struct Shared {
  uint4* tiles;     // [stages, tile] of keys
  float* queries;   // [query_rows, query_row]
  float* partials;  // [kRowLanes, kTileTokens], in the memory of `queries`

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : tiles(memory.array<uint4>(shape.stages * tile_vectors(shape.vectors))),
        queries(memory.array<float>(max(shape.query_rows * shape.query_row, kRowLanes * kTileTokens))),
        partials(queries) {}
};

struct SplitPartials {
  float*
      largest;  // [query_heads * window, splits]: max_j z_j; -infinity if the query attends to no token of the split
  float* sums;  // [query_heads * window, splits]: sum_j exp(z_j - largest)
};

// A thread's sums of exp(z - largest) over its tokens, where largest is the thread's largest logit so far.
template <Storage T, int kRows>
struct RunningSums {
  float largest[kRows], sums[kRows];

  __device__ RunningSums() : sums{} {
#pragma unroll
    for (float& entry : largest) entry = kNothing;
  }

  // visible  for each row the number of the split's tokens that it attends to
  // first    the tile's first token, counted in the split
  __device__ void add(const Products<T, kRows>& logits, int first, const int (&visible)[kRows]) {
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
template <Storage T, int kRows>
__device__ void visible_of_split(const Window<T>& window, int64_t first_row, int64_t first, int count,
                                 int (&visible)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t place = (first_row + Products<T, kRows>::row(r)) % window.size();
    const int64_t seen = window.visible(place) - first;
    visible[r] = static_cast<int>(max(int64_t{0}, min(seen, static_cast<int64_t>(count))));
  }
}

// The largest logit and the sum of exponentials over one split of the tokens, for query_rows queries of a KV head's
// group.
//
// grid       (ceil(group window / query_rows), ceil(tokens / split_tokens), kv_heads)
// block      128
// shared     1024 stages (v | 1) + 4 max(query_rows (row + 4), 512) bytes; 68,608 for head_dim 128, BF16, kRows 8, 2
//            stages
// registers  kRows 4: 107 (16-bit types), 96 (fp32), kRows 8: 153, 128 (sm_90a); 101, 96, 151, 168 (sm_80)
// bytes      read: 16 v for each token and KV head, again for each block along x; the queries for each split; written:
//            8 for each query and split
// FLOP       2 query_heads window tokens head_dim, and an exponential for each logit; tokens in a query's future and
//            rows beyond the last query cost products, too
template <Storage T, int kRows>
__global__ void __launch_bounds__(kThreads)
    window_log_sum_exp_split_kernel(Window<T> window, Splits splits, SplitPartials partials, Shape shape) {
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
  RunningSums<T, kRows> running;
  for (int tile = 0; tile * kTileTokens < count; ++tile) {
    if (shape.stages == 1 && tile > 0) {
      __syncthreads();  // no thread reads the previous tile any more
      load(tile);
    }
    async_wait<0>();
    __syncthreads();  // all threads see the tile, and with two stages none reads the other any more
    if (shape.stages > 1) load(tile + 1);
    const Products<T, kRows> logits(shared.tiles + tile % shape.stages * tile_vectors(shape.vectors),
                                    shared.queries, shape, window.scale);
    running.add(logits, tile * kTileTokens, visible);
  }
  running.join_lanes();
  if (threadIdx.x % kTokenLanes != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first_row + Products<T, kRows>::row(r);
    if (row >= rows) break;
    const int64_t place = (g * rows + row) * splits.count + blockIdx.y;
    partials.largest[place] = running.largest[r];
    partials.sums[place] = running.sums[r];
  }
}

// Combines the splits of a query: one warp for each query.
//
// grid       ceil(query_heads window / 4)
// block      128; no shared memory
// registers  32 (sm_90a and sm_80)
// bytes      read: 8 for each query and split; written: 4 for each query
// FLOP       2 and an exponential for each query and split
__global__ void __launch_bounds__(kJoinWarps * 32)
    window_log_sum_exp_join_kernel(SplitPartials partials, int64_t queries, int64_t splits,
                                   float* log_sum_exp) {
  const int64_t query = blockIdx.x * static_cast<int64_t>(kJoinWarps) + warp();
  if (query >= queries) return;
  const float* largest_of = partials.largest + query * splits;
  float largest = kNothing;
  for (int64_t s = lane(); s < splits; s += 32) largest = fmaxf(largest, largest_of[s]);
  largest = warp_max(largest);
  float sum = 0;
  for (int64_t s = lane(); s < splits; s += 32) {
    if (largest_of[s] == kNothing) continue;
    sum += partials.sums[query * splits + s] * expf(largest_of[s] - largest);
  }
  sum = warp_sum(sum);
  if (lane() == 0) log_sum_exp[query] = largest + logf(sum);
}

// Adds the weights exp(z - log-sum-exp) of the thread's rows, of queries first, first + 1, ... of one query head.
template <Storage T, int kRows>
__device__ void add_weights(const Window<T>& window, const Products<T, kRows>& logits, int64_t first,
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

// The window's mean or summed attention to one tile of tokens, for all query heads of its KV head, one after the other.
//
// grid       (ceil(tokens / 64), kv_heads)
// block      128
// shared     1024 (v | 1) + 4 max(query_rows (row + 4), 512) bytes; 34,304 for head_dim 128, BF16, kRows 4
// registers  kRows 4: 105 (16-bit types), 96 (fp32), kRows 8: 128, 123 (sm_90a); 102, 96, 128, 123 (sm_80)
// bytes      read: 16 v for each token and KV head; the group's queries and log-sum-exp for each block, mostly from the
//            L2 cache; written: 4 query_heads tokens
// FLOP       2 query_heads window tokens head_dim, and an exponential for each logit; rows up to a multiple of
//            query_rows cost products, too
template <Storage T, int kRows, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    window_attention_kernel(Window<T> window, const float* log_sum_exp, float divisor, float* weights,
                            Shape shape) {
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
      const Products<T, kRows> logits(shared.tiles, shared.queries, shape, window.scale);
      add_weights(window, logits, first, first_token, log_sum_exp + head * window.size(), sums);
    }
    const int row_lane = thread / kTokenLanes;
    __syncthreads();  // no thread reads the queries any more
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      shared.partials[row_lane * kTileTokens + Products<T, kRows>::token(t)] = sums[t];
    }
    __syncthreads();
    if (thread >= count) continue;
    const float sum = sum_of_row_lanes(shared.partials, thread);
    weights[head * window.tokens() + first_token + thread] = sum / divisor;
  }
}

// The maximum over the columns j - reach .. j + reach: a thread has one column.
//
// grid       (ceil(cols / 128), rows)
// block      128; no shared memory
// registers  30 (sm_90a and sm_80)
// bytes      read: 4 rows cols, the neighbours from the L1 cache; written: 4 rows cols
// no FLOP    2 reach comparisons for each column
__global__ void __launch_bounds__(kThreads)
    max_pool_kernel(const float* scores, int64_t cols, int64_t row_stride, int64_t reach, float* pooled) {
  const int64_t j = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (j >= cols) return;
  const float* row = scores + blockIdx.y * row_stride;
  const int64_t last = min(cols - 1, j + reach);
  float most = row[max(int64_t{0}, j - reach)];
  for (int64_t i = max(int64_t{0}, j - reach) + 1; i <= last; ++i) {
    // NaN is passed on, for the selection to report.
    if (row[i] > most || row[i] != row[i]) most = row[i];
  }
  pooled[blockIdx.y * cols + j] = most;
}

constexpr int kFewRows = 4, kManyRows = 8;  // queries of a thread

// The first shape that fits into shared memory: many rows or few, and up to `stages` tiles at a time; where memory is
// short, fewer tiles, then fewer rows. Neither changes the order of a sum, so results are the same bits.
template <Storage T>
Shape shape_that_fits(const Window<T>& window, bool many, int stages) {
  const auto with = [&](int rows, int tiles) { return Shape(window.keys, tiles, rows * kRowLanes); };
  const int rows = many ? kManyRows : kFewRows;
  return first_that_fits<Shared>(
      {with(rows, stages), with(rows, 1), with(kFewRows, stages), with(kFewRows, 1)});
}

template <Storage T>
void launch_log_sum_exp(const Window<T>& window, const Splits& splits, const SplitPartials& partials,
                        Stream stream) {
  const int64_t rows = window.group_size() * window.size();
  const Shape shape = shape_that_fits(window, rows > kFewRows * kRowLanes, kMostStages);
  const LaunchShape blocks{extent(ceil_division(rows, shape.query_rows), splits.count, window.keys.slices),
                           dim3(kThreads), shared_bytes<Shared>(shape), stream};
  if (shape.query_rows == kManyRows * kRowLanes) {
    launch<window_log_sum_exp_split_kernel<T, kManyRows>>(blocks, window, splits, partials, shape);
  } else {
    launch<window_log_sum_exp_split_kernel<T, kFewRows>>(blocks, window, splits, partials, shape);
  }
}

float divisor_of(WindowReduction reduction, int64_t queries) {
  switch (reduction) {
    case WindowReduction::mean:
      return static_cast<float>(queries);
    case WindowReduction::sum:
      return 1;
  }
  return 1;
}

template <int kTile, Storage T>
void launch_attention(const Window<T>& window, const Shape& shape, const float* log_sum_exp,
                      WindowReduction reduction, float* weights, Stream stream) {
  constexpr WindowTile kShape = kWindowTiles[kTile];
  const int64_t tiles = ceil_division(window.tokens(), kTileTokens);
  launch<window_attention_kernel<T, kShape.rows, kShape.blocks>>(
      {extent(tiles, window.keys.slices), dim3(kThreads), shared_bytes<Shared>(shape), stream}, window,
      log_sum_exp, divisor_of(reduction, window.size()), weights, shape);
}

template <Storage T>
void launch_attention(const Window<T>& window, const float* log_sum_exp, WindowReduction reduction,
                      float* weights, Stream stream) {
  static_assert(kWindowTiles[0].rows == kFewRows && kWindowTiles[1].rows == kManyRows);
  const Shape shape = shape_that_fits(window, window.size() > kFewRows * kRowLanes, 1);
  if (shape.query_rows == kManyRows * kRowLanes) {
    return launch_attention<1>(window, shape, log_sum_exp, reduction, weights, stream);
  }
  launch_attention<0>(window, shape, log_sum_exp, reduction, weights, stream);
}

int64_t accumulation_depth(int64_t tokens) {
  if (tokens <= 0) return 0;
  // A thread adds the four tokens of a tile, then the tiles; a tree adds sixteen lanes; then the splits are added.
  const int64_t tiles = ceil_division(std::min(tokens, Splits(tokens).tokens), kTileTokens);
  return (kTokens - 1) + tiles + 4 + ceil_division(Splits(tokens).count, 32) + 5;
}

int64_t rescalings(int64_t tokens) {
  // At every tile of a split but the first, where lanes are combined, and where splits are.
  const int64_t tiles = ceil_division(std::min(tokens, Splits(tokens).tokens), kTileTokens);
  return tiles + (Splits(tokens).count > 1 ? 1 : 0);
}

}  // namespace

int64_t window_log_sum_exp_workspace(int64_t query_heads, int64_t window, int64_t tokens) {
  return query_heads * window * Splits(tokens).count * 2 * static_cast<int64_t>(sizeof(float));
}

template <Storage T>
void window_log_sum_exp(const WindowView<T>& view, float* log_sum_exp, Workspace workspace, Stream stream) {
  require_window(view);
  const Window<T> window(view);
  const int64_t queries = view.queries.slices * window.size();
  require_workspace(workspace,
                    window_log_sum_exp_workspace(view.queries.slices, window.size(), window.tokens()));
  const Splits splits(window.tokens());
  auto* const memory = static_cast<float*>(workspace.data);
  const SplitPartials partials{memory, memory + queries * splits.count};
  launch_log_sum_exp(window, splits, partials, stream);
  launch<window_log_sum_exp_join_kernel>(
      {extent(ceil_division(queries, kJoinWarps)), dim3(kJoinWarps * 32), 0, stream}, partials, queries,
      splits.count, log_sum_exp);
}

template <Storage T>
void window_attention(const WindowView<T>& view, const float* log_sum_exp, WindowReduction reduction,
                      float* weights, Stream stream) {
  require_window(view);
  launch_attention(Window<T>(view), log_sum_exp, reduction, weights, stream);
}

void window_tiles::window_attention_by(int tile, const WindowView<Bfloat16>& view, const float* log_sum_exp,
                                       WindowReduction reduction, float* weights, Stream stream) {
  require_window(view);
  const Window<Bfloat16> window(view);
  with_variant<kWindowTileCount>(tile, [&](auto number) {
    const auto shape =
        first_that_fits<Shared>({Shape(window.keys, 1, kWindowTiles[number].rows * kRowLanes)});
    launch_attention<number>(window, shape, log_sum_exp, reduction, weights, stream);
  });
}

template void window_log_sum_exp(const WindowView<float>&, float*, Workspace, Stream);
template void window_log_sum_exp(const WindowView<Float16>&, float*, Workspace, Stream);
template void window_log_sum_exp(const WindowView<Bfloat16>&, float*, Workspace, Stream);

template void window_attention(const WindowView<float>&, const float*, WindowReduction, float*, Stream);
template void window_attention(const WindowView<Float16>&, const float*, WindowReduction, float*, Stream);
template void window_attention(const WindowView<Bfloat16>&, const float*, WindowReduction, float*, Stream);

KernelArithmetic window_arithmetic(int64_t tokens, int64_t head_dim) {
  return {.precision = Precision::fp32,
          .accumulation_depth = accumulation_depth(tokens),
          .product_depth = product_depth(head_dim),
          .rescalings = rescalings(tokens)};
}

void max_pool(const float* scores, int64_t rows, int64_t cols, int64_t row_stride, int64_t width,
              float* pooled, Stream stream) {
  if (width < 1 || width % 2 == 0) {
    throw ShapeMismatch("a pool of width " + std::to_string(width) + " has no middle; expected an odd width");
  }
  if (row_stride < cols) {
    throw ShapeMismatch("row_stride of scores is " + std::to_string(row_stride) + " but rows have " +
                        std::to_string(cols) + " columns");
  }
  if (rows <= 0 || cols <= 0) return;
  launch<max_pool_kernel>({extent(ceil_division(cols, kThreads), rows), dim3(kThreads), 0, stream}, scores,
                          cols, row_stride, (width - 1) / 2, pooled);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
