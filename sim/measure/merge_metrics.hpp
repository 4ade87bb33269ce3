// What merging did to a layer's attention outputs, measured from the records of any backend by one piece of code.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/merging/cluster_change.hpp>
#include <kvbound/traces/trace.hpp>

#include "later_queries.hpp"
#include "layer_record.hpp"

namespace kvbound::sim {

/// What one merge, of all clusters of a KV head at one time, did to the query that built it: the last prompt query at the
/// prompt's end, else the step's own. Norms are in the attention output's space, before W^O.
struct MergeChange {
  int64_t step = -1;  ///< decode step, -1: the prompt's end
  int64_t query_head = 0;
  double perturbation =
      0;  ///< || o(q, cache before) - o(q, cache after) ||_2; those who were dropped are in neither
  /// Of a merge that is lossless in exact arithmetic: how far rounding may lift the perturbation over 0.
  std::optional<double> rounding;

  /// Whether it should be lossless and is not; true for NaN.
  bool violates() const { return rounding && !(perturbation <= *rounding); }
};

struct MergeMetrics {
  MergeCounts counts;                ///< over KV heads and times
  std::vector<MergeChange> changes;  ///< by KV head, time and query head
  /// What each cluster's merge alone did, by KV head, time and position; if asked for, and there are clusters (not with CaM).
  std::vector<reference::ClusterChange> clusters;
  std::optional<LaterQueries>
      later;  ///< if asked for, and merged entries stand for their members (not with CaM)
};

/// Measures what a run that merges recorded of a layer.
///
/// A merge is lossless in exact arithmetic if it goes by the query's own raw scores (predict=current, or a rebuild), for one
/// query head per KV head, with votes and a key that keeps the cluster's weight (min-norm, zip): reference/bounds/merge_errors.hpp.
///
/// later  measure LaterQueries and clusters. Values' distances cost O(entries members head_dim) at each merge, O(n^2 head_dim) a KV
///        head where all who leave a prompt merge
MergeMetrics measure_merges(const traces::Layer& layer, const LayerRecord& record, const Policy& policy,
                            bool later = false);

}  // namespace kvbound::sim
