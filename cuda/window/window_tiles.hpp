// The argument checks of operations over an observation window, and products of its rows and tiles of tokens
// by fp32 multiply-adds: of queries and keys, or of outputs and values.
//
// A thread has kRows rows and four tokens of a tile; shared memory holds the tile in its storage
// type and the rows as fp32:
//
//                        token 0 .. 15   16 .. 31   32 .. 47   48 .. 63     of a tile
//       row    0        | 0 ..  15  |   0 ..  15 |  0 ..  15 |  0 ..  15 |  thread
//       row    1        | 16 .. 31  |  16 ..  31 | 16 ..  31 | 16 ..  31 |
//       ...
//       row    7        | 112.. 127 | 112 .. 127 | 112.. 127 | 112.. 127 |
//       row    8        | 0 ..  15  |   0 ..  15 |  0 ..  15 |  0 ..  15 |  and so on, up to row 8 kRows - 1
#pragma once

#include <algorithm>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/token_tile.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {

/// Throws ShapeMismatch unless the window's arrays have one head_dim that operations take, kv_heads divides
/// query_heads, and there are at least `least` queries and no more than tokens.
template <Storage T>
void require_window(const WindowView<T>& window, int64_t least = 1) {
  require_layout("queries", window.queries);
  require_layout("keys", window.keys);
  require_groups(window.queries.slices, window.keys.slices);
  require_equal("columns of queries", window.queries.cols, "columns of keys", window.keys.cols);
  require_range("head_dim", window.keys.cols, 1, kMostHeadDim);
  require_range("window", window.queries.rows, least, window.keys.rows);
}

/// The same, and unless the values have the shape of the window's keys.
template <Storage T>
void require_window(const WindowView<T>& window, const DeviceTensor<const T>& values) {
  require_window(window);
  require_layout("values", values);
  require_equal("slices of values", values.slices, "slices of keys", window.keys.slices);
  require_equal("rows of values", values.rows, "rows of keys", window.keys.rows);
  require_equal("columns of values", values.cols, "columns of keys", window.keys.cols);
}

inline namespace KVBOUND_CUDA_BUILD {
namespace window_tiles {

inline constexpr int kThreads = 128;
inline constexpr int kTokenLanes = 16;                     ///< a thread has every sixteenth token of a tile
inline constexpr int kTokens = kTileTokens / kTokenLanes;  ///< tokens of a thread
inline constexpr int kRowLanes = kThreads / kTokenLanes;   ///< a thread has every eighth row of a block

/// A product is summed in parts of eight numbers, which keeps the accumulation depth
/// and the error bounds small.
inline constexpr int kPartNumbers = 8;
template <Storage T>
inline constexpr int kPartVectors = kPartNumbers / static_cast<int>(kVector<T>);

inline int64_t product_depth(int64_t head_dim) {
  return std::min<int64_t>(head_dim, kPartNumbers) + ceil_division(head_dim, kPartNumbers);
}

/// A window's queries, in the order of their heads and positions.
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
  /// The number of tokens that window query `place` attends to.
  __device__ int64_t visible(int64_t place) const { return tokens() - size() + place + 1; }
};

/// The tiles and rows that a block has in shared memory.
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
        // A warp reads two successive queries at a time; they begin in different banks.
        query_row(static_cast<int>(padded<T>(keys.cols)) + 4) {}
};

/// Copies queries first, first + 1, ... of KV head g's group to shared memory, counted over its query heads
/// in order. Rows from `count` on are filled with zeros.
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

/// A thread's products: rows thread / 16 + 8 r, tokens thread % 16 + 16 t of a tile.
template <Storage T, int kRows>
struct Products {
  float numbers[kRows][kTokens];

  __device__ static int row(int r) { return static_cast<int>(threadIdx.x) / kTokenLanes + r * kRowLanes; }
  __device__ static int token(int t) { return static_cast<int>(threadIdx.x) % kTokenLanes + t * kTokenLanes; }

  /// Forms the products of a whole tile; those of tokens and rows that do not exist are undefined.
  ///
  /// rows  in shared memory, as load_queries writes them
  __device__ Products(const uint4* tile, const float* rows, const Shape& shape, float scale) : numbers{} {
    for (int v = 0; v < shape.vectors; v += kPartVectors<T>) {
      float part[kRows][kTokens] = {};
#pragma unroll
      for (int i = v; i < v + kPartVectors<T>; ++i) {
        if (i < shape.vectors) add_products(tile, i, rows, shape, part);
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

  // Adds the products of one vector of every token and row to sums.
  __device__ static void add_products(const uint4* tile, int vector, const float* rows, const Shape& shape,
                                      float (&sums)[kRows][kTokens]) {
    float numbers_of_tile[kTokens][kVector<T>];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      unpack<T>(tile[token(t) * tile_row_vectors(shape.vectors) + vector], numbers_of_tile[t]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float* own = rows + row(r) * shape.query_row + vector * kVector<T>;
#pragma unroll
      for (int i = 0; i < kVector<T>; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(own + i);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          sums[r][t] += numbers_of_tile[t][i] * four.x;
          sums[r][t] += numbers_of_tile[t][i + 1] * four.y;
          sums[r][t] += numbers_of_tile[t][i + 2] * four.z;
          sums[r][t] += numbers_of_tile[t][i + 3] * four.w;
        }
      }
    }
  }
};

/// The sum of a token's partial sums over the row lanes, by a fixed tree.
///
/// partials  [kRowLanes, kTileTokens]
__device__ inline float sum_of_row_lanes(const float* partials, int token) {
  const auto pair = [&](int i) {
    return partials[i * kTileTokens + token] + partials[(i + 1) * kTileTokens + token];
  };
  static_assert(kRowLanes == 8);
  return (pair(0) + pair(2)) + (pair(4) + pair(6));
}

}  // namespace window_tiles
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
