// The clusters that form at the prompt's end or at a rebuild: which evicted entries
// merge into which kept one.
#pragma once

#include <cstdint>
#include <limits>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/reference/core/policy.hpp>

#include "nearest_key.hpp"

namespace kvbound::cuda {

/// Lists of positions of every KV head; device memory.
struct PositionLists {
  int64_t* positions = nullptr;  ///< [kv_heads, stride]
  int64_t* count = nullptr;      ///< [kv_heads]
  int64_t stride = 0;
};

/// The clusters of every KV head; device memory.
struct Clusters {
  /// [kv_heads, stride]: the entries that merge, those of one kept entry next to each other, each ascending.
  int64_t* members = nullptr;
  int64_t stride = 0;
  /// [kv_heads, capacity + 1]: kept entry i's are members[offsets[i]] .. members[offsets[i + 1] - 1].
  int64_t* offsets = nullptr;
  int64_t capacity = 0;
};

inline namespace KVBOUND_CUDA_BUILD {

/// Bytes that `entries_left_out` and `form_clusters` need.
int64_t merge_targets_workspace(int64_t kv_heads, int64_t tokens);

/// The positions of the entries that are not kept, ascending: reference::others_than.
///
/// kept    ascending positions
/// tokens  0..kMostScores
/// others  receives the positions and their numbers; stride >= the most of them
/// exact; throws ShapeMismatch; DeviceError
void entries_left_out(const PositionLists& kept, int64_t kv_heads, int64_t tokens,
                      const PositionLists& others, Workspace workspace, Stream stream);

/// Every evicted entry joins the cluster of its nearest kept entry, if their cosine is above the threshold:
/// reference::evict_first. A stable counting sort, without floating-point sums.
///
/// leaving     their positions, from entries_left_out
/// nearest     of the leaving entries, rows of the kept ones, from nearest_keys
/// target      its threshold
/// clusters    kept entries without members have empty ranges
/// exact, and the same bits always; throws ShapeMismatch; DeviceError
void form_clusters(const PositionLists& leaving, const NearestKeys& nearest, const SimilarTarget& target,
                   int64_t kv_heads, int64_t tokens, const Clusters& clusters, Workspace workspace,
                   Stream stream);

/// The same during decoding: the entry of every KV head that was evicted last joins its nearest one, if their
/// cosine is above the threshold: reference::nearest_key.
///
/// cache        its rows and their lengths; `count` is not read
/// slots        `free` is the evicted entry's slot, -1 for none
/// nearest      stride 1: receives the slot and the cosine; -1 where nothing was evicted
///              or no other entry is left
/// kept         stride 1: receives the slot of the nearest entry, and 1; 0 where nothing merges
/// clusters     stride 1, capacity 1
/// merged_into  [kv_heads]: that entry's position, kNotMerged or kNothingEvicted
/// ties         the smaller position
/// precision    of cosines fp32; error: cosine_error in reference/bounds/merge_cluster_errors.hpp with
///              nearest_key_arithmetic()
/// the same inputs give the same bits on every device
/// throws       ShapeMismatch; DeviceError
template <Storage T>
void join_nearest(const KeyRows<T>& cache, const CacheSlots& slots, const NearestKeys& nearest,
                  const SimilarTarget& target, const PositionLists& kept, const Clusters& clusters,
                  int64_t* merged_into, Stream stream);

/// The arithmetic of join_nearest's cosines: product_depth over the head_dim products of one.
template <Storage T>
KernelArithmetic nearest_key_arithmetic(int64_t head_dim);

/// The cosine that merging entries' is above; -infinity: all merge.
inline double threshold_of(const SimilarTarget& target) {
  return target.threshold ? target.threshold->value() : -std::numeric_limits<double>::infinity();
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
