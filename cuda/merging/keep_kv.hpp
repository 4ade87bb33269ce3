// KeepKV's merge on the device: the weights of clusters' entries, and the keys that merged entries get.
//
// A merge is a sequence of operations: merge_queries and log_denominators prepare it, cluster_weights
// weights every cluster's entries, then merged_keys and weighted_means (weighted_mean.hpp) replace the keys
// and values of kept entries.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/merge_rules.hpp>

#include "weighted_mean.hpp"

namespace kvbound::cuda {

/// The entries that merge, with what weights them; device memory. Rows are those of the entries,
/// of a layer or of a cache.
struct ScoredEntries {
  const float* log_scores = nullptr;  ///< [query_heads, stride]: ln s^, natural log
  const float* votes = nullptr;       ///< [kv_heads, stride], p > 0; null: 1 for all
  int64_t stride = 0;
};

/// The queries for which clusters merge, as merge_queries prepares them; device memory, 16-byte
/// aligned. `rows` is merging_rows.
struct MergeQueries {
  /// [kv_heads, rows, head_dim], multiplied by the scale; one row: the mean of the group's.
  float* queries = nullptr;
  /// [kv_heads, rows, head_dim]: their truncated pseudo-inverse; row h is what a missing logit of 1
  /// of query h adds to a key.
  float* inverse = nullptr;
};

/// What ZIP's scale of a cluster is; 0: between 1/2 and 3/2, or the kept entry has no members.
enum ZipOutcome : uint8_t {
  kSingular = 1,  ///< there is no scale: the minimum-norm key is used
  kNegative = 2,
  kFar = 4,  ///< it differs from 1 by more than 1/2
};

/// The merged entries' numbers beside their keys and values; device memory, by kept entry.
struct MergedNumbers {
  float* divergences = nullptr;     ///< as ClusterWeights::kept: KL, in nats
  float* shares = nullptr;          ///< as ClusterWeights::kept: c_h / sum c, of each head's mean value
  float* zip_scales = nullptr;      ///< [kv_heads, capacity]: z* / m; null: keys are not formed by zip
  uint8_t* zip_outcomes = nullptr;  ///< [kv_heads, capacity]: ZipOutcome; null likewise
  float* log_scores = nullptr;      ///< [query_heads, capacity]: ln (W / P), the predicted scores
};

/// Where merged votes are written; device memory.
struct MergedVotes {
  float* votes = nullptr;      ///< [kv_heads, stride]: P; null: the method has no votes
  float* log_votes = nullptr;  ///< [kv_heads, stride]: their natural log
  int64_t stride = 0;
};

/// The rows of weights of each KV head: one for each query head of the group that
/// weights the members separately.
inline int64_t merging_rows(MergeGqa gqa, int64_t group_size) {
  return gqa == MergeGqa::joint ? group_size : 1;
}

inline namespace KVBOUND_CUDA_BUILD {

/// The truncated pseudo-inverse of each group's queries: reference::MergeQueries.
///
/// queries    [1, query_heads, head_dim], head_dim 1..256
/// precision  squared singular values in fp64 by Jacobi rotations of Q Q^T, results in fp32; below
///            sqrt(head_dim 2^-52) of the largest a singular value counts as 0; error: "Joint corrections" in
///            reference/bounds/merge_cluster_errors.md
/// throws     ShapeMismatch, also if a group's queries in fp64 do not fit into a block's
///            shared memory; DeviceError
template <Storage T>
void merge_queries(const KeyRule& rule, DeviceTensor<const T> queries, int64_t kv_heads, double scale,
                   const MergeQueries& prepared, Stream stream);

/// ln D_h = ln sum_j p_j s^h_j over the first count[g] entries, for each query head.
///
/// count             [kv_heads], device memory
/// log_denominators  [query_heads], device memory; -infinity for no entries
/// precision         fp32; throws ShapeMismatch; DeviceError
void log_denominators(const ScoredEntries& entries, int64_t query_heads, int64_t kv_heads,
                      const int64_t* count, float* log_denominators, Stream stream);

/// The weights of every cluster's entries, and the numbers of the merged ones:
/// reference::cluster_mean and log_mean_score.
///
///     w_j = p_j s^_j / W,   KL = -ln sum_j (p_j / P) exp(ln s^_j - m),   m = sum_j w_j ln s^_j
///     c_h = (W_h / D_h)^2
///
/// log_denominators  [query_heads]; read by `joint` with several heads
/// weights           rows = merging_rows
/// votes             rows merged.into
/// status            set to 1 if a score is NaN or infinite, or if scores are too far
///                   apart for single precision
/// precision         fp32, sums of up to 32 + members / 32 terms in a row; errors: merge_cluster_errors in
///                   reference/bounds/merge_cluster_errors.hpp
/// source            KeepKV (arXiv:2504.09936), Algorithm 1; proof: proofs/keep_kv.md#kkv-3
/// throws            ShapeMismatch; DeviceError
void cluster_weights(const KeyRule& rule, const ScoredEntries& entries, int64_t query_heads, int64_t kv_heads,
                     const float* log_denominators, const MergedEntries& merged,
                     const ClusterWeights& weights, const MergedNumbers& numbers, const MergedVotes& votes,
                     int* status, Stream stream);

/// Replaces the keys of kept entries that have members: reference::keep_kv's keys of
/// the rules min_norm and zip.
///
///     min-norm   mean_h k-_h + the smallest correction towards the logits scale q_h .
///                k-_h - KL_h of all heads
///     zip        k- z* / m, where it is not singular
///
/// entries    [kv_heads, rows, head_dim], head_dim 1..256; may be the cache itself if every
///            head has at most one cluster
/// numbers    from cluster_weights
/// cache      [kv_heads, ..., head_dim]: rows merged.into are written, rounded to the storage type
/// workspace  cluster_sums_workspace
/// status     set to 1 if a key does not fit the storage type
/// precision  fp32; errors: merge_cluster_errors in reference/bounds/merge_cluster_errors.hpp
/// throws     ShapeMismatch; DeviceError
template <Storage T>
void merged_keys(const KeyRule& rule, DeviceTensor<const T> entries, const MergeQueries& queries,
                 const MergedEntries& merged, const ClusterWeights& weights, const MergedNumbers& numbers,
                 DeviceTensor<T> cache, int* status, Workspace workspace, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
