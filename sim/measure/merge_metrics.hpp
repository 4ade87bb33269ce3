// The effect of merging on a layer's attention outputs; the same code measures the records of every backend.
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

/// The effect of one merge (all clusters of a KV head at one time) on the query that built it: the last
/// prompt query at the prompt's end, otherwise the step's own. Norms are of the attention output, before W^O.
struct MergeChange {
  int64_t step = -1;  ///< decode step, -1: the prompt's end
  int64_t query_head = 0;
  double perturbation =
      0;  ///< || o(q, cache before) - o(q, cache after) ||_2; both without the dropped entries
  /// For a merge that is lossless in exact arithmetic: the largest perturbation that rounding explains.
  std::optional<double> rounding;

  /// Whether a merge that should be lossless is not; true for NaN.
  bool violates() const { return rounding && !(perturbation <= *rounding); }
};

struct MergeMetrics {
  MergeCounts counts;                ///< summed over KV heads and times
  std::vector<MergeChange> changes;  ///< by KV head, time and query head
  /// The effect of each cluster alone, by KV head, time and position; empty with CaM or if not requested.
  std::vector<reference::ClusterChange> clusters;
  std::optional<LaterQueries>
      later;  ///< nullopt with CaM, whose entries have no members, or if not requested
};

/// Measures the merges that a run recorded of a layer.
///
/// A merge is lossless in exact arithmetic if it uses the query's own raw scores (predict=current, or a
/// rebuild), with one query head per KV head, with votes and with a key that conserves the cluster's weight
/// (min-norm, zip): reference/bounds/merge_errors.hpp.
///
/// later   whether to measure LaterQueries and clusters. Distances of values cost O(entries members head_dim)
///         per merge: O(n^2 head_dim) per KV head if all entries evicted at the prompt's end merge
/// judged  whether the record is in double precision, whose rounding the bounds allow for. Of others, whose
///         merged keys and values are rounded to the type that stores them, no merge counts as lossless and
///         no bound as violated: they are held against the reference instead (agreement.hpp)
MergeMetrics measure_merges(const traces::Layer& layer, const LayerRecord& record, const Policy& policy,
                            bool later = false, bool judged = true);

}  // namespace kvbound::sim
