// What merging did to a layer's attention outputs, measured from the records of any backend by one piece of code.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

struct LayerRecord;

/// What one merge, of all groups of a KV head at one time, did to the query that built it: the last prompt query at the
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

/// A decode step and a query head.
struct StepHead {
  int64_t step = 0;
  int64_t query_head = 0;
  friend bool operator==(const StepHead&, const StepHead&) = default;
};

/// What the latest merge does to queries after it. Rows are decode steps, columns query heads; o is the attention output. The
/// cache before is the present one with every merged entry of that merge that is still there, as it was then, replaced by its
/// members. NaN where no merged entry is left.
struct LaterQueries {
  Matrix perturbation;  ///< Theta = || o(q_t, the cache before) - o(q_t, the cache) ||_2
  /// epsilon = max |1 - s^/s| over the members and the merged entries; NaN where nothing was predicted
  Matrix prediction_error;
  Matrix value_distance;  ///< gamma = max ||v_i - v_j||_2, i in the cache before, j its merged members
  Matrix share;           ///< A'_r: of the attention, what the merged entries get
  Matrix sag;             ///< the members' attention over the cache before, less that share
  /// Upper bounds on the perturbation, of merges that vote; infinite where epsilon is not below 1, and NaN where there are none.
  Matrix bound;         ///< KKV-5, for one query head per KV head alone
  Matrix shared_bound;  ///< KKV-5', likewise: that times the share
  /// KKV-5-joint, for any number of query heads and groups: KKV-5' + sum_r A'_r ||v_r - v-_h||, v-_h the mean by the head's own scores
  Matrix joint_bound;
  std::vector<StepHead>
      violations;  ///< ascending: where the last is exceeded by more than rounding can explain
};

struct MergeMetrics {
  MergeCounts counts;                ///< over KV heads and times
  std::vector<MergeChange> changes;  ///< by KV head, time and query head
  std::optional<LaterQueries>
      later;  ///< if asked for, and merged entries stand for their members (not with CaM)
};

/// Measures what a run that merges recorded of a layer.
///
/// A merge is lossless in exact arithmetic if it goes by the query's own raw scores (predict=current, or a rebuild), for one
/// query head per KV head, with votes and a key that keeps the group's weight (min-norm, zip): reference/merge_errors.hpp.
///
/// The bounds hold for any epsilon < 1. With groups r, w_j = p_j s^_j, õ the output over the merged cache with v-_h,r in the place
/// of v_r, KKV-5' bounds ||o - õ||, and õ - o' = sum_r A'_r (v-_h,r - v_r): so the joint form holds for several groups, too.
///
/// later  measure LaterQueries: O(n b head_dim) a KV head
MergeMetrics measure_merges(const traces::Layer& layer, const LayerRecord& record, const Policy& policy,
                            bool later = false);

}  // namespace kvbound::sim
