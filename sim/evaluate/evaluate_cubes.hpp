// An evaluation's results as cubes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/figures/cube.hpp>

#include "evaluate.hpp"

namespace kvbound::sim {

/// The results of an evaluation, and what they were asked for with.
struct EvaluateReport {
  EvaluateResult result;
  std::optional<Policy> base;
  int64_t resamples = 2000, seed = 1;      ///< of the bootstrap
  std::string model_path, tasks_path;      ///< as given on the command line
  std::string model_sha256, tasks_sha256;  ///< empty if no output needs them
  std::optional<int64_t> step_limit;       ///< --steps

  /// What computed it.
  std::string backend() const {
    return result.options.runs.empty() ? "" : result.options.runs.front().backend;
  }
};

/// The document's part. The first place of the axis `run` is the full cache.
///
///     runs         [kind, run]         means over the tasks of a kind
///     layers       [kind, run, layer]  likewise
///     depths       [depth, run]        answers by where their needle is, kind by kind
///     correlations [kind, outcome, indicator, budget]
///     tasks        [task]
///     task_runs    [task, run]         means over tokens or steps
///     task_layers  [task, run, layer]
///     tokens       [token, run]        tokens of all targets, task by task
///     steps        [step, run]         decode steps, likewise
Part evaluate_part(const EvaluateReport& report);

/// The figures that the table of runs can have, for --columns.
std::vector<Figure> evaluate_columns();

}  // namespace kvbound::sim
