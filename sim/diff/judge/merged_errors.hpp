// Error bounds of a tested implementation's numbers in one KV head's merged cache.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/eviction/head_cache.hpp>
#include <kvbound/traces/trace.hpp>

#include <kvbound/sim/diff/claims/input_rounding.hpp>

namespace kvbound::sim {

/// Error bounds of one entry due to merging. Storage counts only where the layer's own numbers fit the
/// storage type, which merged ones do not; elsewhere the arithmetic's `input` covers it for all entries.
struct EntryErrors {
  std::vector<double> key;    ///< [head_dim]
  std::vector<double> value;  ///< [head_dim]
  /// Where rounding decides which singular values of the queries were dropped: the keys of all ranks.
  std::vector<reference::PossibleKey> possible_keys = {};
  double condition_number = 0;  ///< of the queries for which the entry merged; 0 where it does not matter
  /// [directions]: MergedEntryErrors::key_savings and value_savings of the directions for which it
  /// merged; empty: none are known.
  std::vector<double> key_savings = {}, value_savings = {};
};

/// Error bounds of all entries of a cache, likewise without storage.
struct CacheRowErrors {
  Matrix keys;    ///< [entries, head_dim]; no rows: the whole cache is exact
  Matrix values;  ///< [entries, head_dim]; likewise

  reference::CacheErrors view() const { return {keys, values}; }
};

/// The cache in which clusters merge: its entries by position, and their predicted scores.
struct MergingCache {
  MatrixView queries;                   ///< [group_size, head_dim]: the queries that merge
  Matrix log_scores = {};               ///< [group_size, entries], natural log; for methods that predict
  std::vector<double> votes = {};       ///< [entries]; empty: 1 for all
  std::vector<int64_t> positions = {};  ///< [entries]
};

/// Bounds on the errors of entries and of the logarithms of their predicted scores, by position, kept up to
/// date as the cache evolves. Entries that never merged carry the rounding of their storage only. Merged
/// numbers are computed in the arithmetic's precision and rounded once to the storage type.
class MergedErrors {
 public:
  /// All arguments must outlive the object.
  ///
  /// storage  type of the cache
  MergedErrors(const traces::Layer& layer, const Policy& policy, const reference::Arithmetic& arithmetic,
               Dtype storage, int64_t kv_head);

  EntryErrors entry(int64_t position) const;
  CacheRowErrors of(const reference::HeadCache& cache) const;
  /// Error bounds of the numbers as stored: of merging and of storage, [head_dim].
  std::vector<double> stored_key(int64_t position, VectorView key) const;
  std::vector<double> stored_value(int64_t position, VectorView value) const;
  /// The same of the possible keys, which are those of the entry.
  std::vector<reference::PossibleKey> stored_possible_keys(int64_t position) const;

  /// Sets the error bounds of the predicted scores after the prompt.
  ///
  /// log_sum_exp_errors  [query_heads, window_queries]; used for normalised scores only
  void accumulate_prompt(const LayerView& prompt, const Matrix& log_sum_exp_errors);
  /// Restarts from a rebuilt cache, whose predicted scores are these queries' own.
  ///
  /// queries  [group_size, head_dim]
  /// keys     [tokens, head_dim]
  void restart(MatrixView queries, MatrixView keys);
  /// Updates the error bounds of the predicted scores by a step's attention.
  ///
  /// errors  of the step's attention
  /// tokens  in the sequence so far
  void observe(MatrixView queries, const reference::HeadCache& cache, int64_t tokens,
               const reference::AttentionErrors& errors);

  /// Error bounds of the entry that one cluster merges into.
  ///
  /// positions   [members]
  /// directions  in which they are bounded as wholes, too
  reference::MergedEntryErrors merged(const MergingCache& cache, const reference::ClusterMembers& members,
                                      const std::vector<int64_t>& positions,
                                      const reference::MergeDirections& directions = {}) const;
  void put(int64_t position, reference::MergedEntryErrors errors);
  /// Adds the rounding of a merged entry's key or value to the storage type, [head_dim].
  void store_key(int64_t position, VectorView key);
  void store_value(int64_t position, VectorView value);
  /// Adds the rounding of an entry's stored value, before CaM adds to that value.
  void add_storage(int64_t position, VectorView value);
  /// Adds the error of CaM's adding a share of an evicted value to an entry's value: the evicted value's own
  /// error, and the rounding of the sum.
  ///
  /// own, value, value_errors  [head_dim]: the entry's value; the evicted value and its error bounds
  /// sharing                   number of entries that the evicted value is spread over
  void add_spread(int64_t position, VectorView own, VectorView value, VectorView value_errors,
                  int64_t sharing);
  /// Adds the rounding of partial sums that were larger in magnitude than the final sum.
  void add_on_the_way(int64_t position, VectorView value, int64_t sharing);

  /// The key or value of an entry is exactly the tested implementation's.
  void set_exact_key(int64_t position);
  void set_exact_value(int64_t position);

  void forget(int64_t position) { entries_.erase(position); }
  void forget_entries() { entries_.clear(); }

 private:
  struct Denominators;
  struct ClusterErrors;
  Denominators denominators(const MergingCache& cache) const;
  bool is_normalised() const;
  // Unit roundoff of the tested implementation and of the reference together.
  double unit() const { return arithmetic_.unit + 0x1p-53; }

  const traces::Layer& layer_;
  const Policy& policy_;
  const reference::Arithmetic& arithmetic_;
  const int64_t g_, group_size_;
  const std::optional<PredictedScores> prediction_;
  const InputRounding storage_;  // of merged numbers; 0 where the arithmetic's `input` covers it
  std::map<int64_t, EntryErrors> entries_;
  Matrix log_scores_;  // [group_size, n + T]
};

}  // namespace kvbound::sim
