// A run in a few figures: means over layers, query heads and decode steps.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "replay.hpp"

namespace kvbound::sim {

/// The mean of what is defined; `undefined` counts the x/0 that are not in it.
struct Mean {
  double sum = 0;
  int64_t count = 0;
  int64_t undefined = 0;

  void add(double value);
  std::optional<double> value() const;
};

/// The median: for figures of which some are past all bounds.
struct Median {
  std::vector<double> values;

  void add(double value) { values.push_back(value); }
  std::optional<double> value() const;
};

/// Where a figure was seen.
struct Place {
  int64_t layer = 0;
  int64_t step = 0;
  int64_t query_head = 0;
};

/// What merging did, over layers, times and query heads.
struct MergeSummary {
  MergeCounts counts;
  Mean perturbation;  ///< of the queries that built the merges: ||o - o'||_2, attention output units
  double max_perturbation = 0;  ///< NaN if one is
  Mean cluster_merged;          ///< of each group alone, if that was measured: reference::GroupChange
  Mean cluster_evicted;         ///< likewise
  Mean cluster_floor;           ///< likewise
  int64_t lossless = 0;         ///< (merge, query head) that changes nothing in exact arithmetic
  int64_t violations = 0;       ///< of those, how many do by more than rounding can explain
  std::optional<Place> first_violation;  ///< step -1: the prompt's end
};

/// What the latest merges did to later queries, over layers, decode steps and query heads.
struct LaterSummary {
  Mean perturbation;        ///< Theta
  Mean sag;                 ///< attention that the merged entries get less than their members did
  int64_t predicted = 0;    ///< (layer, step, head) with an epsilon
  int64_t predictable = 0;  ///< of those, how many have epsilon < 1
  Mean prediction_error;    ///< of these
  Mean value_distance;      ///< gamma, where there is a bound
  Median bound;             ///< KKV-5 where epsilon < 1; one query head per KV head
  Median shared_bound;      ///< KKV-5', likewise
  Median joint_bound;       ///< KKV-5-joint where epsilon < 1
  int64_t violations = 0;   ///< of the last, beyond rounding
  std::optional<Place> first_violation;
};

struct Summary {
  Mean perturbation;
  Mean relative;
  Mean bound;      ///< theta; of runs that only evict
  Mean tightness;  ///< L / theta, likewise
  Mean kept_mass;
  Mean layer_perturbation;
  Mean layer_relative;
  Mean recall;                ///< over layers and KV heads
  Mean stage_one_mass;        ///< two-stage selections only
  int64_t stage_one_low = 0;  ///< of those, how many (layer, head, step) have stage-one mass <= 1/2
  int64_t violations = 0;     ///< L > theta beyond rounding
  std::optional<Place> first_violation;
  double max_tightness = 0;
  std::optional<Place> tightest;
  std::optional<MergeSummary> merges;  ///< of runs that merge, if their merges were measured
  std::optional<LaterSummary> later;   ///< and if what they did to later queries was
};

Summary summarise(const RunResult& run, const Scope& scope);

/// Heads whose mean perturbation over the steps is below the base policy's.
struct ImprovedHeads {
  int64_t improved = 0;
  int64_t heads = 0;  ///< layers times query heads
};
ImprovedHeads improved_heads(const RunResult& run, const RunResult& base);

/// The run of the base policy at the same budget on the same backend; null if there is none, it is `run`, or no
/// step was measured.
const RunResult* base_of(const RunResult& run, const ReplayResult& result, const std::optional<Policy>& base);

/// The mean of each column, one per query head.
std::vector<double> column_means(const Matrix& matrix);

}  // namespace kvbound::sim
