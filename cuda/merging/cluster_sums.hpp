// Sums over the rows of clusters' members, weighted, for kernels in which a warp has a cluster.
//
// Members are added in their order, by chunks of 64 places of the members' list:
//
//     place     0 ..  63 | 64 .. 127 | 128 .. 191 | 192 ..            a cluster of up to 64 members is summed by its own
//     cluster   a a b b b b b b b b b b b b b b b c c c c c ...       warp; of a larger one, such as b, every chunk's part
//                  first 0 |  first 1  |  first 2 , second 2          is summed beforehand, by a warp of its own
//
// A chunk has at most two parts of large clusters: of the one that its first place belongs to, and of one that begins later
// in it. The order of additions depends on nothing but the clusters.
#pragma once

#include <cmath>
#include <limits>

#include <kvbound/cuda/primitives/kernel.hpp>

#include "weighted_mean.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace cluster_sums {

inline constexpr int64_t kChunk = 64;
inline constexpr int64_t kMostColumns = 256;
inline constexpr int kLaneColumns = static_cast<int>(kMostColumns) / 32;

/// One number for each column; a lane has the columns l, l + 32, ...
struct Columns {
  float numbers[kLaneColumns] = {};

  /// Calls work(c, number) for the lane's columns below `count`.
  template <class Work>
  __device__ void each(int count, const Work& work) {
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      const int c = lane() + 32 * i;
      if (c < count) work(c, numbers[i]);
    }
  }
  __device__ void add(float factor, const Columns& other) {
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) numbers[i] += factor * other.numbers[i];
  }
};

/// Where merged rows are written.
template <Storage T>
struct MergedRows {
  DeviceTensor<T> cache;
  const int64_t* into;  // [kv_heads, capacity]; null: the i-th row
  int64_t capacity;
  int* status;

  /// Writes the row of kept entry i. The whole warp calls it.
  __device__ void store(int64_t g, int64_t i, int head_dim, Columns& row) const {
    T* const numbers = row_of(g, i);
    row.each(head_dim, [&](int c, float& number) { put(numbers[c], number); });
  }
  /// Adds to the row of kept entry i; numbers to which 0 is added keep their bits. The whole warp calls it.
  __device__ void add(int64_t g, int64_t i, int head_dim, Columns& row) const {
    T* const numbers = row_of(g, i);
    row.each(head_dim, [&](int c, float& number) {
      if (number != 0) put(numbers[c], to_float(numbers[c]) + number);
    });
  }

 private:
  __device__ T* row_of(int64_t g, int64_t i) const {
    return cache.data + g * cache.slice_stride + (into ? into[g * capacity + i] : i) * cache.row_stride;
  }
  __device__ void put(T& stored, float number) const {
    stored = to_storage<T>(number);
    // Several threads may write the status, all of them 1.
    if (!(fabsf(to_float(stored)) <= std::numeric_limits<float>::max())) *status = 1;
  }
};

/// The rows that are summed, and their weights.
template <Storage T>
struct Sums {
  DeviceTensor<const T> entries;
  PositionLists kept;
  Clusters clusters;
  ClusterWeights weights;
  const float* parts;  // [kv_heads, chunks, 2, weights.rows, head_dim]

  __host__ __device__ int head_dim() const { return static_cast<int>(entries.cols); }
  __host__ __device__ int64_t chunks() const { return ceil_division(clusters.stride, kChunk); }
  __host__ __device__ int64_t part(int64_t g, int64_t chunk, int second, int64_t h) const {
    return (((g * chunks() + chunk) * 2 + second) * weights.rows + h) * entries.cols;
  }
  /// The first member's place; of i = capacity the end of all.
  __device__ int64_t first(int64_t g, int64_t i) const {
    return clusters.offsets[g * (clusters.capacity + 1) + i];
  }

  /// Whether there is a kept entry i that has members.
  __device__ bool merges(int64_t g, int64_t i) const {
    return i < clusters.capacity && first(g, i) < first(g, i + 1);
  }

  /// The kept entry that the member at this place merges with.
  __device__ int64_t cluster_at(int64_t g, int64_t place) const {
    int64_t from = 0, to = clusters.capacity;
    while (from < to) {
      const int64_t middle = (from + to) / 2;
      if (first(g, middle + 1) <= place) {
        from = middle + 1;
      } else {
        to = middle;
      }
    }
    return from;
  }

  /// sum += weight * row
  __device__ void add(int64_t g, int64_t row, float weight, Columns& sum) const {
    const T* const numbers = entries.data + g * entries.slice_stride + row * entries.row_stride;
    sum.each(head_dim(), [&](int c, float& number) { number += weight * to_float(numbers[c]); });
  }
  /// Adds the members at these places with the weights of row h.
  __device__ void add_places(int64_t g, int64_t h, int64_t from, int64_t to, Columns& sum) const {
    const float* const own = weights.members + (g * weights.rows + h) * clusters.stride;
    for (int64_t place = from; place < to; ++place) {
      add(g, clusters.members[g * clusters.stride + place], own[place], sum);
    }
  }

  /// The sum of all members of kept entry i with the weights of row h.
  __device__ Columns of_members(int64_t g, int64_t h, int64_t i) const {
    Columns sum;
    const int64_t from = first(g, i), to = first(g, i + 1);
    if (to - from <= kChunk) {
      add_places(g, h, from, to, sum);
      return sum;
    }
    for (int64_t chunk = from / kChunk; chunk <= (to - 1) / kChunk; ++chunk) {
      const float* const numbers = parts + part(g, chunk, from > chunk * kChunk ? 1 : 0, h);
      sum.each(head_dim(), [&](int c, float& number) { number += numbers[c]; });
    }
    return sum;
  }
  /// The same with the kept entry.
  __device__ Columns of_cluster(int64_t g, int64_t h, int64_t i) const {
    Columns sum = of_members(g, h, i);
    add(g, kept.positions[g * kept.stride + i], weights.kept[(g * weights.rows + h) * clusters.capacity + i],
        sum);
    return sum;
  }
};

/// Checks the arguments, and queues the summing of large clusters' parts.
template <Storage T>
Sums<T> sums_of(DeviceTensor<const T> entries, const PositionLists& kept, const Clusters& clusters,
                const ClusterWeights& weights, Workspace workspace, Stream stream);

}  // namespace cluster_sums
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
