// The figures of a task through a cache: each is one row of a table, from which an evaluation's cubes follow.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <kvbound/sim/figures/figure.hpp>

#include "task_result.hpp"
#include "tasks.hpp"

namespace kvbound::sim {

/// A task decoded through the full cache, or by a run.
struct TaskView {
  const Task& task;
  const TaskResult& result;
  const RunFigures* run;  ///< null: through the full cache

  const std::vector<double>& nll() const { return run ? run->nll : result.full_nll; }
  const std::vector<int64_t>& top1() const { return run ? run->top1 : result.full_top1; }
};

/// A figure of a task. On a kind of tasks a run has its mean over the tasks that have the figure, or its sum.
struct TaskFigure {
  Figure figure;
  std::function<double(const TaskView&)> of;  ///< NaN: none
  bool is_sum = false;
  std::optional<Shown> error = {};      ///< whether the mean has a standard error and an interval
  std::optional<Shown> less_base = {};  ///< whether there is its difference from the base policy's
};

/// All figures, in the order of tables.
const std::vector<TaskFigure>& task_figures();

/// The names of those that are measured open loop: on the steps of the sequence with the full cache.
std::vector<std::string> open_loop_names();

}  // namespace kvbound::sim
