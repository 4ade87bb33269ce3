// A run in a few figures: means over layers, query heads and decode steps.
#pragma once

#include <cstdint>
#include <optional>

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

/// Where a figure was seen.
struct Place {
  int64_t layer = 0;
  int64_t step = 0;
  int64_t query_head = 0;
};

struct Summary {
  Mean perturbation;
  Mean relative;
  Mean bound;
  Mean tightness;  ///< L / theta
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
