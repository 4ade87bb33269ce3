// How far a tested implementation's numbers of one KV head's merged cache may be off.
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

namespace kvbound::sim {

/// What merging cost an entry, before it is stored.
struct EntryErrors {
  std::vector<double> key;    ///< [head_dim]
  std::vector<double> value;  ///< [head_dim]
};

/// The same of all entries of a cache.
struct CacheRowErrors {
  Matrix keys;    ///< [entries, head_dim]
  Matrix values;  ///< [entries, head_dim]

  reference::CacheErrors view() const { return {keys, values}; }
};

/// Groups to merge: entries by position, and what is predicted of the whole cache that they are of.
struct MergingCache {
  MatrixView queries;                   ///< [group_size, head_dim]: they merge
  Matrix log_scores = {};               ///< [group_size, entries] natural log, of methods that predict
  std::vector<double> votes = {};       ///< [entries]; empty: 1 for all
  std::vector<int64_t> positions = {};  ///< [entries]
};

/// Bounds on the errors of entries and of the logarithms of their predicted scores, by position, as the cache goes on.
/// Whatever is not merged is off by nothing but storage.
class MergedErrors {
 public:
  /// All arguments outlive it.
  MergedErrors(const traces::Layer& layer, const Policy& policy, const reference::Arithmetic& arithmetic,
               int64_t kv_head);

  EntryErrors entry(int64_t position) const;
  CacheRowErrors of(const reference::HeadCache& cache) const;
  /// Of numbers as they are stored.
  std::vector<double> stored_key(int64_t position, VectorView key) const;
  std::vector<double> stored_value(int64_t position, VectorView value) const;

  /// Predicted scores after the prompt.
  ///
  /// log_sum_exp_errors  [query_heads, window_queries]; of scores that are normalised
  void accumulate_prompt(const LayerView& prompt, const Matrix& log_sum_exp_errors);
  /// Predicted scores are these queries' own: a cache that was rebuilt.
  ///
  /// queries  [group_size, head_dim]
  /// keys     [tokens, head_dim]
  void restart(MatrixView queries, MatrixView keys);
  /// Predicted scores take in a step's.
  ///
  /// errors  of its attention
  /// tokens  so far
  void observe(MatrixView queries, const reference::HeadCache& cache, int64_t tokens,
               const reference::AttentionErrors& errors);

  /// Of one group's merged entry.
  ///
  /// positions  [members]
  reference::MergedEntryErrors merged(const MergingCache& cache, const reference::ClusterMembers& members,
                                      const std::vector<int64_t>& positions) const;
  void put(int64_t position, reference::MergedEntryErrors errors);
  /// What storing an entry's value cost before CaM adds to it.
  void add_storage(int64_t position, VectorView value);
  /// What CaM adds to an entry's value, each time rounded: a share of a value that is itself off.
  ///
  /// sharing  how many entries that value is spread over
  void add_spread(int64_t position, VectorView own, VectorView value, VectorView value_errors,
                  int64_t sharing);
  /// What more rounding costs a sum that was larger on the way than it is at the end.
  void add_on_the_way(int64_t position, VectorView value, int64_t sharing);

  void forget(int64_t position) { entries_.erase(position); }
  void forget_entries() { entries_.clear(); }

 private:
  struct Denominators;
  struct ClusterErrors;
  Denominators denominators(const MergingCache& cache) const;
  bool is_normalised() const;
  double unit() const { return arithmetic_.unit + 0x1p-53; }  // both sides round

  const traces::Layer& layer_;
  const Policy& policy_;
  const reference::Arithmetic& arithmetic_;
  const int64_t g_, group_size_;
  const std::optional<PredictedScores> prediction_;
  std::map<int64_t, EntryErrors> entries_;
  Matrix log_scores_;  // [group_size, n + T]
};

}  // namespace kvbound::sim
