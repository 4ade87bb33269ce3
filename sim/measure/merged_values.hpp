// A merged cache's values as sums of original ones, from the records of any backend.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/merging/merged_cache.hpp>
#include <kvbound/traces/trace.hpp>

#include "layer_record.hpp"

namespace kvbound::sim {

/// One KV head's cache of a run that merges, decode step by decode step.
///
///     v_r = sum_i C_ri v_i + R_r
///
/// over the original values v_i. C follows from the recorded clusters and scores (value_weights; with CaM
/// C_ri = 1/count for every value that was spread); R is what the recorded value differs from that sum by, as
/// it is: the rounding of the backend's arithmetic and of the type in which it stores merged values.
///
/// The record, which has its policy's merge, must outlive the object. Throws as MergedCache.
class MergedValues {
 public:
  MergedValues(const traces::Layer& layer, const LayerRecord& record, int64_t kv_head);

  /// The entries to which the queries of `step` attend. Successive calls must not go back to an earlier step.
  const reference::CacheEntries& at(int64_t step);

  /// Adds entries, weighted, to sums over the originals.
  ///
  ///     weights[i] += sum_r a_r C_ri,   rest += sum_r a_r R_r
  ///
  /// attention  [entries]: a
  /// weights    [n + T]
  /// rest       [head_dim]
  void add(VectorView attention, std::span<double> weights, std::span<double> rest) const;

 private:
  // A merged entry: C_r, by position, and R_r.
  struct Sum {
    std::vector<std::pair<int64_t, double>> weights;
    std::vector<double> rest;
  };

  void merge(const reference::CacheMerge& merge);
  void spread(const reference::CacheMerge& merge);
  void accumulate(Sum& sum, int64_t position, double weight) const;
  void put(int64_t position, Sum sum);

  MatrixView values_;  // [n + T, head_dim]
  const LayerRecord& record_;
  reference::MergedCache cache_;
  std::map<int64_t, Sum> sums_;  // of merged entries, by position
  int64_t entered_ = 0;          // number of steps entered
};

}  // namespace kvbound::sim
