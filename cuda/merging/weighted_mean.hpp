// Weighted means of the rows of a cluster's entries: merged values, and merged keys without a correction.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>

#include "merge_targets.hpp"

namespace kvbound::cuda {

/// Where the numbers lie that every row of weights has for every entry of the KV heads. Those of four rows
/// lie side by side, so that one load reads an entry's:
///
///     rows 0..3, 4..7, ...  [kv_heads, entries, 4] each, one behind the other
///     the rows that remain  [kv_heads, entries, rows % 4]
struct WeightLayout {
  static constexpr int64_t kTogether = 4;

  int64_t rows, kv_heads, entries;

  /// So many rows lie side by side from this one on, the first of four or of those that remain.
  constexpr int64_t together(int64_t first_row) const {
    return rows - first_row < kTogether ? rows - first_row : kTogether;
  }
  constexpr int64_t place(int64_t row, int64_t kv_head, int64_t entry) const {
    const int64_t first_row = row / kTogether * kTogether, width = together(first_row);
    return (first_row * kv_heads + kv_head * width) * entries + entry * width + row - first_row;
  }
};

/// The weights of clusters' entries; device memory, 16-byte aligned, in the order of WeightLayout. A KV head
/// has one row of weights, or one for every query head of its group.
struct ClusterWeights {
  int64_t rows = 1;          ///< of each KV head
  float* kept = nullptr;     ///< of capacity entries: the kept ones
  float* members = nullptr;  ///< of stride entries: the members, in the order of Clusters
};

/// The entries that clusters merge: rows of a layer, or of a cache; device memory.
struct MergedEntries {
  PositionLists kept;  ///< the row of every kept entry, with which its cluster's members merge
  Clusters clusters;   ///< their members' rows
  const int64_t* into =
      nullptr;  ///< [kv_heads, capacity]: the rows of the cache that are replaced; null: the i-th row
};

inline namespace KVBOUND_CUDA_BUILD {

/// Bytes that sums over clusters' members need.
///
/// stride  of the clusters
int64_t cluster_sums_workspace(int64_t kv_heads, int64_t rows, int64_t stride, int64_t head_dim);

/// Replaces the rows of kept entries that have members by means of the clusters' rows.
///
///     cache[g, into(i), :] = sum_h shares[h, g, i] (weights.kept[h, g, i] entries[g, kept(i), :]
///                                                   + sum_j weights.members[h, g, j] entries[g, j, :])
///
/// entries    [kv_heads, rows, head_dim], head_dim 1..256; may be the cache itself if every
///            head has at most one cluster
/// shares     of capacity entries, as weights.kept; null: 1 / weights.rows each
/// cache      [kv_heads, ..., head_dim]; rows of kept entries without members are left as they are
/// status     set to 1 if a result does not fit the storage type or is NaN
/// precision  fp32, then rounded to the storage type; clusters of more than 64 members are summed by parts
///            of 128. Errors: UncertainWeights::mean_errors in reference/bounds/merge_rounding.hpp
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void weighted_means(DeviceTensor<const T> entries, const MergedEntries& merged, const ClusterWeights& weights,
                    const float* shares, DeviceTensor<T> cache, int* status, Workspace workspace,
                    Stream stream);

/// The sums alone, without the kept entries: sums[g, i, :] = sum_j weights.members[0, g, j] entries[g, j, :].
///
/// weights  one row
/// sums     [kv_heads, capacity, head_dim], device memory, 16-byte aligned; 0 for clusters without members
/// precision, throws: as above
template <Storage T>
void weighted_sums(DeviceTensor<const T> entries, const Clusters& clusters, const ClusterWeights& weights,
                   float* sums, Workspace workspace, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
