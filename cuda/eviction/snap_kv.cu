// SnapKV's scores. Both kernels that form logits give a thread a few queries and four tokens; keys are in shared memory as
// they are stored, queries as fp32.
#include "snap_kv.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/token_tile.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kNothing = -INFINITY;

constexpr int kThreads = 128;
constexpr int kTokenLanes = 16;                     // a thread has every sixteenth token of a tile
constexpr int kTokens = kTileTokens / kTokenLanes;  // so many
constexpr int kRowLanes = kThreads / kTokenLanes;   // and every eighth query of a block's
constexpr int kMostStages = 2;
constexpr int64_t kMostSplitTokens = 512;
constexpr int64_t kSplitsWanted = 64;
constexpr int kJoinWarps = 4;

// A product of a query and a key is summed in parts of eight numbers: that keeps the accumulation depth, and so the
// bounds, small.
constexpr int kPartNumbers = 8;
template <Storage T>
inline constexpr int kPartVectors = kPartNumbers / static_cast<int>(kVector<T>);

constexpr int64_t ceil_division(int64_t number, int64_t divisor) { return (number + divisor - 1) / divisor; }

// How the tokens of a prompt are split for window_log_sum_exp.
struct Splits {
  int64_t tokens;  // of one split
  int64_t count;

  explicit Splits(int64_t all)
      : tokens(std::clamp(ceil_division(ceil_division(all, kSplitsWanted), kTileTokens) * kTileTokens,
                          int64_t{kTileTokens}, kMostSplitTokens)),
        count(ceil_division(all, tokens)) {}
};

// A window's queries, in the order of their heads and positions.
template <Storage T>
struct Window {
  DeviceTensor<const T> queries;
  DeviceTensor<const T> keys;
  float scale;

  explicit Window(const WindowView<T>& view)
      : queries(view.queries), keys(view.keys), scale(static_cast<float>(view.scale)) {}

  __host__ __device__ int64_t tokens() const { return keys.rows; }
  __host__ __device__ int64_t size() const { return queries.rows; }
  __host__ __device__ int64_t group_size() const { return queries.slices / keys.slices; }
  // How many tokens its query at this place sees.
  __device__ int64_t visible(int64_t place) const { return tokens() - size() + place + 1; }
};

struct Shape {
  int stages;
  int vectors;     // of a row of keys
  int query_rows;  // of a block
  int query_row;   // numbers from one to the next

  template <Storage T>
  Shape(const DeviceTensor<const T>& keys, int stages_, int query_rows_)
      : stages(stages_),
        vectors(static_cast<int>(padded<T>(keys.cols) / kVector<T>)),
        query_rows(query_rows_),
        // Two successive queries, which a warp reads at a time, begin in different banks.
        query_row(static_cast<int>(padded<T>(keys.cols)) + 4) {}
};

struct Shared {
  uint4* tiles;     // [stages, tile] of keys
  float* queries;   // [query_rows, query_row]
  float* partials;  // [kRowLanes, kTileTokens], in the queries' place

  __host__ __device__ Shared(SharedMemory& memory, const Shape& shape)
      : tiles(memory.array<uint4>(shape.stages * tile_vectors(shape.vectors))),
        queries(memory.array<float>(max(shape.query_rows * shape.query_row, kRowLanes * kTileTokens))),
        partials(queries) {}
};

// Puts queries first, first + 1, ... of the group of KV head g into shared memory, its query heads one after the other.
// Rows from `count` on are filled with zeros.
template <Storage T>
__device__ void load_queries(const Window<T>& window, int64_t g, int64_t first, int count, const Shape& shape,
                             float* queries) {
  const int columns = power_of_two_above(shape.vectors, 64);
  const int column = static_cast<int>(threadIdx.x) % columns;
  if (column >= shape.vectors) return;
  for (int r = static_cast<int>(threadIdx.x) / columns; r < shape.query_rows; r += kThreads / columns) {
    float numbers[kVector<T>] = {};
    if (r < count) {
      const int64_t head = g * window.group_size() + (first + r) / window.size();
      const T* row = window.queries.data + head * window.queries.slice_stride +
                     (first + r) % window.size() * window.queries.row_stride;
      unpack<T>(reinterpret_cast<const uint4*>(row)[column], numbers);
    }
    float* to = queries + r * shape.query_row + column * kVector<T>;
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) to[i] = numbers[i];
  }
}

// A thread's logits: rows lane / 16 + 8 r, tokens lane % 16 + 16 t of a tile.
template <Storage T, int kRows>
struct Logits {
  float numbers[kRows][kTokens];

  __device__ static int row(int r) { return static_cast<int>(threadIdx.x) / kTokenLanes + r * kRowLanes; }
  __device__ static int token(int t) { return static_cast<int>(threadIdx.x) % kTokenLanes + t * kTokenLanes; }

  // Of a whole tile; what stands for tokens and queries that there are not means nothing.
  __device__ Logits(const uint4* tile, const Shared& shared, const Shape& shape, float scale) : numbers{} {
    for (int v = 0; v < shape.vectors; v += kPartVectors<T>) {
      float part[kRows][kTokens] = {};
#pragma unroll
      for (int i = v; i < v + kPartVectors<T>; ++i) {
        if (i < shape.vectors) add_products(tile, i, shared, shape, part);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) numbers[r][t] += part[r][t];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) numbers[r][t] *= scale;
    }
  }

  // sums += what one vector of every row adds to the products
  __device__ static void add_products(const uint4* tile, int vector, const Shared& shared, const Shape& shape,
                                      float (&sums)[kRows][kTokens]) {
    float keys[kTokens][kVector<T>];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      unpack<T>(tile[token(t) * tile_row_vectors(shape.vectors) + vector], keys[t]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float* query = shared.queries + row(r) * shape.query_row + vector * kVector<T>;
#pragma unroll
      for (int i = 0; i < kVector<T>; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(query + i);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          sums[r][t] += keys[t][i] * four.x;
          sums[r][t] += keys[t][i + 1] * four.y;
          sums[r][t] += keys[t][i + 2] * four.z;
          sums[r][t] += keys[t][i + 3] * four.w;
        }
      }
    }
  }
};

struct SplitPartials {
  float*
      largest;  // [query_heads * window, splits]: max_j z_j; -infinity if the query sees nothing of the split
  float* sums;  // [query_heads * window, splits]: sum_j exp(z_j - largest)
};

// A thread's part of the sums over tokens, each relative to the largest logit that it has met.
template <Storage T, int kRows>
struct RunningSums {
  float largest[kRows], sums[kRows];

  __device__ RunningSums() : sums{} {
#pragma unroll
    for (float& entry : largest) entry = kNothing;
  }

  // visible  so many of the split's tokens each row sees
  // first    where the tile begins in the split
  __device__ void add(const Logits<T, kRows>& logits, int first, const int (&visible)[kRows]) {
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

  // Joins what the lanes of the same rows have.
  __device__ void join_lanes() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float most = largest[r];
      for (int offset = kTokenLanes / 2; offset > 0; offset /= 2) {
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, offset));
      }
      float sum = largest[r] == most ? sums[r] : sums[r] * expf(largest[r] - most);
      for (int offset = kTokenLanes / 2; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, offset);
      }
      largest[r] = most, sums[r] = sum;
    }
  }
};

// How many of `count` tokens from `first` on each of the thread's rows sees.
template <Storage T, int kRows>
__device__ void visible_of_split(const Window<T>& window, int64_t first_row, int64_t first, int count,
                                 int (&visible)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t place = (first_row + Logits<T, kRows>::row(r)) % window.size();
    const int64_t seen = window.visible(place) - first;
    visible[r] = static_cast<int>(max(int64_t{0}, min(seen, static_cast<int64_t>(count))));
  }
}

// A block has some queries of a KV head's group and one split of its tokens.
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
      __syncthreads();  // all are through with the tile before
      load(tile);
    }
    async_wait<0>();
    __syncthreads();  // the tile is there for all, and of two stages all are through with the other
    if (shape.stages > 1) load(tile + 1);
    const Logits<T, kRows> logits(shared.tiles + tile % shape.stages * tile_vectors(shape.vectors), shared,
                                  shape, window.scale);
    running.add(logits, tile * kTileTokens, visible);
  }
  running.join_lanes();
  if (threadIdx.x % kTokenLanes != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first_row + Logits<T, kRows>::row(r);
    if (row >= rows) break;
    const int64_t place = (g * rows + row) * splits.count + blockIdx.y;
    partials.largest[place] = running.largest[r];
    partials.sums[place] = running.sums[r];
  }
}

// A warp joins the splits of one query.
__global__ void __launch_bounds__(kJoinWarps * 32)
    window_log_sum_exp_join_kernel(SplitPartials partials, int64_t queries, int64_t splits,
                                   float* log_sum_exp) {
  const int64_t query = blockIdx.x * static_cast<int64_t>(kJoinWarps) + threadIdx.x / 32;
  if (query >= queries) return;
  const float* largest_of = partials.largest + query * splits;
  float largest = kNothing;
  for (int64_t s = threadIdx.x % 32; s < splits; s += 32) largest = fmaxf(largest, largest_of[s]);
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  }
  float sum = 0;
  for (int64_t s = threadIdx.x % 32; s < splits; s += 32) {
    if (largest_of[s] == kNothing) continue;
    sum += partials.sums[query * splits + s] * expf(largest_of[s] - largest);
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  if (threadIdx.x % 32 == 0) log_sum_exp[query] = largest + logf(sum);
}

// Adds up the thread's rows of weights exp(z - log-sum-exp), of queries first, first + 1, ... of one head.
template <Storage T, int kRows>
__device__ void add_weights(const Window<T>& window, const Logits<T, kRows>& logits, int64_t first,
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

// A block has one tile of tokens and takes the query heads of their KV head one by one, so that keys are read once.
template <Storage T, int kRows>
__global__ void __launch_bounds__(kThreads, 4)
    window_attention_kernel(Window<T> window, const float* log_sum_exp, float* mean, Shape shape) {
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
      __syncthreads();  // the keys are there for all, and no thread reads the previous queries any more
      load_queries(window, g, h * window.size() + first,
                   static_cast<int>(min(window.size() - first, static_cast<int64_t>(shape.query_rows))),
                   shape, shared.queries);
      __syncthreads();
      const Logits<T, kRows> logits(shared.tiles, shared, shape, window.scale);
      add_weights(window, logits, first, first_token, log_sum_exp + head * window.size(), sums);
    }
    const int row_lane = thread / kTokenLanes;
    __syncthreads();  // no thread reads the queries any more
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      shared.partials[row_lane * kTileTokens + Logits<T, kRows>::token(t)] = sums[t];
    }
    __syncthreads();
    if (thread >= count) continue;
    const float* p = shared.partials + thread;
    const auto pair = [&](int i) { return p[i * kTileTokens] + p[(i + 1) * kTileTokens]; };
    static_assert(kRowLanes == 8);
    const float sum = (pair(0) + pair(2)) + (pair(4) + pair(6));
    mean[head * window.tokens() + first_token + thread] = sum / static_cast<float>(window.size());
  }
}

__global__ void __launch_bounds__(kThreads)
    max_pool_kernel(const float* scores, int64_t cols, int64_t row_stride, int64_t reach, float* pooled) {
  const int64_t j = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (j >= cols) return;
  const float* row = scores + blockIdx.y * row_stride;
  const int64_t last = min(cols - 1, j + reach);
  float most = row[max(int64_t{0}, j - reach)];
  for (int64_t i = max(int64_t{0}, j - reach) + 1; i <= last; ++i) {
    // The selection must see NaN.
    if (row[i] > most || row[i] != row[i]) most = row[i];
  }
  pooled[blockIdx.y * cols + j] = most;
}

__global__ void __launch_bounds__(kThreads)
    group_mean_kernel(const float* scores, int64_t cols, int64_t group_size, float* mean) {
  const int64_t j = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (j >= cols) return;
  const int64_t g = blockIdx.y;
  float sum = 0;
  for (int64_t h = g * group_size; h < (g + 1) * group_size; ++h) sum += scores[h * cols + j];
  mean[g * cols + j] = sum / static_cast<float>(group_size);
}

template <Storage T>
void require_valid(const WindowView<T>& window) {
  require_layout("queries", window.queries);
  require_layout("keys", window.keys);
  require_groups(window.queries.slices, window.keys.slices);
  require_equal("columns of queries", window.queries.cols, "columns of keys", window.keys.cols);
  require_range("head_dim", window.keys.cols, 1, 256);
  require_range("window", window.queries.rows, 1, window.keys.rows);
}

constexpr int kFewRows = 4, kManyRows = 8;  // queries of a thread

// What a block has at a time: many rows or few, and so many tiles. Where shared memory is short it is fewer tiles, then
// fewer rows. Neither changes in which order anything is summed, so bits do not depend on it.
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
  launch({extent(ceil_division(rows, shape.query_rows), splits.count, window.keys.slices), dim3(kThreads),
          shared_bytes<Shared>(shape), stream},
         shape.query_rows == kManyRows * kRowLanes ? window_log_sum_exp_split_kernel<T, kManyRows>
                                                   : window_log_sum_exp_split_kernel<T, kFewRows>,
         window, splits, partials, shape);
}

template <Storage T>
void launch_attention(const Window<T>& window, const float* log_sum_exp, float* mean, Stream stream) {
  const Shape shape = shape_that_fits(window, window.size() > kFewRows * kRowLanes, 1);
  const int64_t tiles = ceil_division(window.tokens(), kTileTokens);
  launch({extent(tiles, window.keys.slices), dim3(kThreads), shared_bytes<Shared>(shape), stream},
         shape.query_rows == kManyRows * kRowLanes ? window_attention_kernel<T, kManyRows>
                                                   : window_attention_kernel<T, kFewRows>,
         window, log_sum_exp, mean, shape);
}

int64_t accumulation_depth(int64_t tokens) {
  if (tokens <= 0) return 0;
  // A thread adds up four tokens of a tile and then tiles; sixteen lanes are joined by a tree; then come the splits.
  const int64_t tiles = ceil_division(std::min(tokens, Splits(tokens).tokens), kTileTokens);
  return (kTokens - 1) + tiles + 4 + ceil_division(Splits(tokens).count, 32) + 5;
}

int64_t product_depth(int64_t head_dim) {
  return std::min<int64_t>(head_dim, kPartNumbers) + ceil_division(head_dim, kPartNumbers);
}

int64_t rescalings(int64_t tokens) {
  // With every tile of a split but the first, when lanes are joined, and when splits are.
  const int64_t tiles = ceil_division(std::min(tokens, Splits(tokens).tokens), kTileTokens);
  return tiles + (Splits(tokens).count > 1 ? 1 : 0);
}

}  // namespace

int64_t window_log_sum_exp_workspace(int64_t query_heads, int64_t window, int64_t tokens) {
  return query_heads * window * Splits(tokens).count * 2 * static_cast<int64_t>(sizeof(float));
}

template <Storage T>
void window_log_sum_exp(const WindowView<T>& view, float* log_sum_exp, Workspace workspace, Stream stream) {
  require_valid(view);
  const Window<T> window(view);
  const int64_t queries = view.queries.slices * window.size();
  require_workspace(workspace,
                    window_log_sum_exp_workspace(view.queries.slices, window.size(), window.tokens()));
  const Splits splits(window.tokens());
  auto* const memory = static_cast<float*>(workspace.data);
  const SplitPartials partials{memory, memory + queries * splits.count};
  launch_log_sum_exp(window, splits, partials, stream);
  launch({extent(ceil_division(queries, kJoinWarps)), dim3(kJoinWarps * 32), 0, stream},
         window_log_sum_exp_join_kernel, partials, queries, splits.count, log_sum_exp);
}

template <Storage T>
void window_attention(const WindowView<T>& view, const float* log_sum_exp, float* mean, Stream stream) {
  require_valid(view);
  launch_attention(Window<T>(view), log_sum_exp, mean, stream);
}

template void window_log_sum_exp(const WindowView<float>&, float*, Workspace, Stream);
template void window_log_sum_exp(const WindowView<Float16>&, float*, Workspace, Stream);
template void window_log_sum_exp(const WindowView<Bfloat16>&, float*, Workspace, Stream);

template void window_attention(const WindowView<float>&, const float*, float*, Stream);
template void window_attention(const WindowView<Float16>&, const float*, float*, Stream);
template void window_attention(const WindowView<Bfloat16>&, const float*, float*, Stream);

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
  launch({extent(ceil_division(cols, kThreads), rows), dim3(kThreads), 0, stream}, max_pool_kernel, scores,
         cols, row_stride, (width - 1) / 2, pooled);
}

void group_mean(const float* scores, int64_t query_heads, int64_t cols, int64_t group_size, float* mean,
                Stream stream) {
  if (group_size < 1 || query_heads % group_size != 0) {
    throw ShapeMismatch(std::to_string(query_heads) + " query heads cannot be shared out in groups of " +
                        std::to_string(group_size));
  }
  if (query_heads <= 0 || cols <= 0) return;
  launch({extent(ceil_division(cols, kThreads), query_heads / group_size), dim3(kThreads), 0, stream},
         group_mean_kernel, scores, cols, group_size, mean);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
