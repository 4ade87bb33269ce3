// The figures of a replay: each is one row of a table, from which all columns of its cubes follow.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/figures/figure.hpp>

#include "summary.hpp"

namespace kvbound::sim {

/// A run with what its figures are taken from.
struct RunView {
  const RunResult& run;
  const Summary& summary;
  const traces::TraceInfo& trace;
  const RunResult* base;  ///< base_of; null: none
};

/// A figure, and how it is computed at the finest level that it has. From decode steps and heads follow the
/// means of each head (over the steps) and of the run (over layers, steps and heads); a run's number may be
/// computed in another way.
struct ReplayFigure {
  Figure figure;
  double (*of_run)(const RunView&) = nullptr;  ///< NaN: none
  std::string (*text_of_run)(const RunView&) = nullptr;
  /// [steps, query heads]; nullopt: the run has none
  std::optional<Matrix> (*of_steps)(const LayerMetrics&) = nullptr;
  std::vector<double> (*of_layer_steps)(const LayerMetrics&) = nullptr;  ///< [steps], or empty
  std::vector<double> (*of_kv_heads)(const LayerMetrics&) = nullptr;     ///< [kv_heads], or empty
  bool may_be_undefined = false;  ///< as x/0 is: NaN, left out of means, and counted

  bool is_of_runs() const { return of_run || of_steps || of_layer_steps || of_kv_heads; }
};

/// All figures, in the order of tables.
const std::vector<ReplayFigure>& replay_figures();

/// The figure's number of a run, and how many ratios x/0 are left out of it. NaN: none.
struct RunNumber {
  double number;
  int64_t undefined = 0;
};
RunNumber number_of_run(const ReplayFigure& figure, const RunView& view);

/// The mean over steps of each query head, NaN left out; NaN where nothing is left.
std::vector<double> head_means(const Matrix& figures);

}  // namespace kvbound::sim
