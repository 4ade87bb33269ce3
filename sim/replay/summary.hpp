// Summarises a run: means over layers, query heads and decode steps.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/sim/measure/mean.hpp>

#include "replay.hpp"

namespace kvbound::sim {

/// The median, for figures of which some may be infinite or extremely large.
struct Median {
  std::vector<double> values;

  void add(double value) { values.push_back(value); }
  std::optional<double> value() const;
};

/// The layer, step and query head of a figure.
struct Place {
  int64_t layer = 0;
  int64_t step = 0;
  int64_t query_head = 0;
};

/// The effect of merging, over layers, times and query heads.
struct MergeSummary {
  MergeCounts counts;
  Mean perturbation;            ///< ||o - o'||_2 of the queries that built the merges, attention output units
  double max_perturbation = 0;  ///< NaN if any is NaN
  Mean cluster_merged;          ///< of each cluster alone, if measured: reference::ClusterChange
  Mean cluster_evicted;         ///< likewise
  Mean cluster_floor;           ///< likewise
  int64_t lossless = 0;         ///< (merge, query head) that are lossless in exact arithmetic
  int64_t violations = 0;  ///< of those, the number that change the output by more than rounding explains
  std::optional<Place> first_violation;  ///< step -1: the prompt's end
};

/// The effect of the latest merges on later queries, over layers, decode steps and query heads.
struct LaterSummary {
  Mean perturbation;      ///< Theta
  Mean sag;               ///< attention that the members would receive, less what the merged entries receive
  int64_t predicted = 0;  ///< (layer, step, head) with an epsilon
  int64_t predictable = 0;  ///< of those, the number with epsilon < 1
  Mean prediction_error;    ///< epsilon, where it is below 1
  Mean value_distance;      ///< gamma, where there is a bound
  Median bound;             ///< KKV-5 where epsilon < 1; one query head per KV head
  Median shared_bound;      ///< KKV-5', likewise
  Median joint_bound;       ///< KKV-5-joint where epsilon < 1
  Median variation_bound;   ///< by total variation, whatever epsilon
  int64_t violations = 0;   ///< Theta > one of the last two by more than rounding explains
  std::optional<Place> first_violation;
};

struct Summary {
  Mean perturbation;
  Mean relative;
  bool bounded = false;  ///< whether there is a theta
  Mean bound;            ///< theta
  Mean tightness;        ///< L / theta
  Mean kept_mass;
  Mean layer_perturbation;
  Mean layer_relative;
  Mean recall;                ///< over layers and KV heads
  Mean stage_one_mass;        ///< two-stage selections only
  int64_t stage_one_low = 0;  ///< of those, the number of (layer, head, step) with stage-one mass <= 1/2
  int64_t violations = 0;     ///< L > theta, or centred theta, by more than rounding explains
  std::optional<Place> first_violation;
  double max_tightness = 0;
  std::optional<Place> tightest;
  std::optional<MergeSummary> merges;  ///< for runs that merge, if merges were measured
  std::optional<LaterSummary> later;   ///< the same, if the effect on later queries was measured
};

Summary summarise(const RunResult& run, const Scope& scope);

/// Heads whose mean perturbation over the steps is below the base policy's.
struct ImprovedHeads {
  int64_t improved = 0;
  int64_t heads = 0;  ///< layers times query heads
};
ImprovedHeads improved_heads(const RunResult& run, const RunResult& base);

/// The run of the base policy at the same budget on the same backend; null if there is no such run, if `run`
/// is itself of the base policy, or if no step was measured.
const RunResult* base_of(const RunResult& run, const ReplayResult& result, const std::optional<Policy>& base);

/// The mean of each column, one per query head.
std::vector<double> column_means(const Matrix& matrix);

}  // namespace kvbound::sim
