// Clusters' members, and the parts by which large clusters are summed, with weights.
//
// A cluster of up to 64 members is summed by its own lanes (cluster_rows.hpp). A larger one has a part for
// each 128 members, which is summed beforehand, by a block of its own. Parts lie one behind the other, the
// first one of a cluster in the slot of its first member's chunk of 64 places. No two clusters share a slot:
// m > 64 members reach over at least floor(m / 64) chunks, and have ceil(m / 128) parts.
//
//     place     0 ..  63 | 64 .. 127 | 128 .. 191 | 192 .. 255 | 256
//     cluster   a a b b b b b b b b b b b b b b b b c c c c c c ...
//     slot      0  part 0  1  part 1    2             3
//
// b, of 140 members, has parts of 128 and 12 members; c, if it is large, has slot 3.
//
// The order of additions depends on nothing but the clusters.
#pragma once

#include <cmath>
#include <limits>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>

#include "weighted_mean.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace cluster_sums {

inline constexpr int kChunk = 64;  // the members that a cluster without parts has at most
inline constexpr int kPartMembers = 128;
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
};

/// Where merged rows are written.
template <Storage T>
struct MergedRows {
  DeviceTensor<T> cache;
  const int64_t* into;  // [kv_heads, capacity]; null: the i-th row
  int64_t capacity;
  int* status;

  /// Adds to the row of kept entry i; numbers to which 0 is added keep their bits. The whole warp calls it.
  __device__ void add(int64_t g, int64_t i, int head_dim, Columns& row) const {
    T* const numbers = row_of(g, i);
    row.each(head_dim, [&](int c, float& number) {
      if (number != 0) numbers[c] = stored(to_float(numbers[c]) + number);
    });
  }
  __device__ T* row_of(int64_t g, int64_t i) const {
    return cache.data + g * cache.slice_stride + (into ? into[g * capacity + i] : i) * cache.row_stride;
  }
  /// The number as it is stored; sets the status if it does not fit.
  __device__ T stored(float number) const {
    const T result = to_storage<T>(number);
    if (!fits(result)) reports();
    return result;
  }
  __device__ static bool fits(T number) {
    return fabsf(to_float(number)) <= std::numeric_limits<float>::max();
  }
  /// Several threads may write the status, all of them 1.
  __device__ void reports() const { *status = 1; }
};

/// The rows that are summed, and their weights.
template <Storage T>
struct Sums {
  DeviceTensor<const T> entries;
  PositionLists kept;
  Clusters clusters;
  ClusterWeights weights;
  const float* parts;  // [kv_heads, slots, weights.rows, dims_of(head_dim)], as lanes read them

  __host__ __device__ int head_dim() const { return static_cast<int>(entries.cols); }
  __host__ __device__ int64_t slots() const { return clusters.stride / kChunk; }
  /// Where the part in a slot is, with the weights of row h.
  __host__ __device__ int64_t part(int64_t g, int64_t slot, int64_t h) const {
    return ((g * slots() + slot) * weights.rows + h) * dims_of(entries.cols);
  }
  /// How the kept entries' weights lie.
  __host__ __device__ WeightLayout of_kept() const {
    return {weights.rows, entries.slices, clusters.capacity};
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
};

/// Checks the arguments, and queues the summing of large clusters' parts.
template <Storage T>
Sums<T> sums_of(DeviceTensor<const T> entries, const PositionLists& kept, const Clusters& clusters,
                const ClusterWeights& weights, Workspace workspace, Stream stream);

}  // namespace cluster_sums
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
