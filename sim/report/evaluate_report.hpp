// An evaluation's results: tables for people, JSON for programs (evaluate.schema.json), CSV for plots.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/evaluate/correlations.hpp>
#include <kvbound/sim/evaluate/evaluate.hpp>
#include <kvbound/sim/evaluate/task_summary.hpp>

#include <kvbound/sim/figures/table.hpp>

namespace kvbound::sim {

struct EvaluateReport {
  EvaluateResult result;
  std::optional<Policy> base;
  EvaluateSummary summary;
  std::vector<Correlation> correlations;
  int64_t resamples = 0, seed = 0;         ///< of the bootstrap
  std::string model_path, tasks_path;      ///< as given on the command line
  std::string model_sha256, tasks_sha256;  ///< empty if no output needs them
  std::optional<int64_t> step_limit;       ///< --steps
};

/// Per kind of tasks: what became of the model, answers by depth, the open-loop figures, and the correlations.
///
/// style  how tables are printed, and whether figures follow them
std::string text_report(const EvaluateReport& report, const TextStyle& style);
/// All figures, with everything needed to reproduce them.
std::string json_report(const EvaluateReport& report);
/// A row per task, run and token of the target.
std::string csv_report(const EvaluateReport& report);

}  // namespace kvbound::sim
