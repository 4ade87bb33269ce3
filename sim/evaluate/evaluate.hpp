// All tasks of a file through all policies and budgets.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/traces/models/checkpoint.hpp>

#include "closed_loop.hpp"
#include "results_file.hpp"
#include "task_result.hpp"
#include "tasks.hpp"

namespace kvbound::sim {

struct EvaluateResult {
  traces::ModelConfig model;
  EvaluateOptions options;
  std::vector<Task> tasks;
  std::vector<TaskResult> results;  ///< [tasks]
};

/// Called with the work done and the whole: work_of, without what was finished before.
using EvaluateProgress = std::function<void(int64_t, int64_t)>;

/// Throws InvalidPolicy, naming task, policy and budget, if a run is not valid for a task;
/// NoDevice; as traces::GivenFile.
///
/// returns  [tasks]: what is known of the files of runs whose host is `given`
std::vector<GivenFacts> require_valid(const EvaluateOptions& options, const std::vector<Task>& tasks,
                                      const traces::ModelConfig& model);

/// The runs, called as the files of the host `given` say if those of all tasks agree.
///
/// facts  [tasks], at least one
std::vector<Run> with_names(const std::vector<Run>& runs, const std::vector<GivenFacts>& facts);

/// finished  results of earlier runs of the program, to which every result is added when
///           it is there; may be null
/// throws    as require_valid, before any work; TraceError, naming task and file, for numbers that overflow;
///           what reading weights and writing results throw
EvaluateResult evaluate(const traces::Checkpoint& checkpoint, const std::vector<Task>& tasks,
                        const EvaluateOptions& options, ResultsFile* finished,
                        const EvaluateProgress& progress);

}  // namespace kvbound::sim
