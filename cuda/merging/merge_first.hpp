// order=merge-first on the device: candidates merge before the selection, which chooses among the
// roots of their clusters.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/policy.hpp>

#include "merge_targets.hpp"
#include "nearest_key.hpp"

namespace kvbound::cuda {

/// The candidates of every KV head: positions first, first + 1, ...; all other entries are always kept.
struct MergingCandidates {
  int64_t first = 0;
  int64_t count = 0;
  int64_t tokens = 0;              ///< entries in all
  NumberRows<const float> scores;  ///< [kv_heads, count]
};

/// The roots of the candidates; device memory.
struct MergeRoots {
  int64_t* roots = nullptr;  ///< [kv_heads, count]: each candidate's root, counted from the first candidate
  float* sums = nullptr;  ///< [kv_heads, count]: the sum of a root's candidates' scores; -infinity for others
};

inline namespace KVBOUND_CUDA_BUILD {

/// Bytes that `merge_first` and `root_clusters` need.
int64_t merge_first_workspace(int64_t kv_heads, int64_t tokens);

/// The roots, and the entries that are kept: reference::merge_first.
///
///     root(i) = the end of i's chain of parents;   score(root) = sum of the scores of all
///                                                  candidates with this root
///
/// parents    from nearest_better_keys; one counts if its cosine is above the threshold
/// k          [kv_heads], device memory: largest number of roots to keep, 0..count
/// kept       receives ascending positions: of the k roots of largest sum, ties: smaller position, and of the
///            entries that are no candidates; and their number
/// status     set to 1 if a score is NaN
/// precision  sums in fp32, of up to 32 + members / 32 terms in a row; all else is
///            exact. The same bits always
/// throws     ShapeMismatch; DeviceError
void merge_first(const MergingCandidates& candidates, const NearestKeys& parents, const SimilarTarget& target,
                 const int64_t* k, const MergeRoots& roots, const PositionLists& kept, int64_t kv_heads,
                 int* status, Workspace workspace, Stream stream);

/// The clusters of the roots that are kept; all other entries are dropped.
///
/// leaving   from entries_left_out
/// clusters  as form_clusters gives them
/// exact; throws ShapeMismatch; DeviceError
void root_clusters(const MergingCandidates& candidates, const int64_t* roots, const PositionLists& kept,
                   const PositionLists& leaving, int64_t kv_heads, const Clusters& clusters,
                   Workspace workspace, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
