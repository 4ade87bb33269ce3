#include "evaluate.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/session_check.hpp>
#include <kvbound/sim/replay/backend.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

std::string named(const Task& task) { return "task " + traces::in_quotes(task.id); }

TaskResult evaluate_task(const traces::Checkpoint& checkpoint, const Task& task,
                         const EvaluateOptions& options, const std::function<void(int64_t)>& advance) {
  try {
    return run_closed_loop(checkpoint, task, options, advance);
  } catch (const NonFinite& error) {
    throw TraceError(checkpoint.paths().front(), -1, named(task),
                     fmt::format("its numbers are too large to compute with: {}", error.what()));
  }
}

// Throws TraceError if a result that was read from a file has not the task's numbers.
void require_fits(const TaskResult& result, const Task& task, const EvaluateOptions& options, size_t layers,
                  const std::string& path) {
  const size_t target = task.target.size(), steps = steps_of(task);
  const auto fits = [&](const RunFigures& run) {
    return run.kl.size() == target && run.nll.size() == target && run.top1.size() == target &&
           run.hidden_error.size() == layers && run.entries.size() == steps &&
           run.stored_entries.size() == steps;
  };
  if (result.steps == steps_of(task) && result.full_nll.size() == target &&
      result.full_top1.size() == target && result.runs.size() == options.runs.size() &&
      std::ranges::all_of(result.runs, fits))
    return;
  throw TraceError(path, -1, named(task), "has other tokens, steps, layers or runs than the evaluation");
}

}  // namespace

std::vector<GivenFacts> require_valid(const EvaluateOptions& options, const std::vector<Task>& tasks,
                                      const traces::ModelConfig& model) {
  std::vector<GivenFacts> facts(tasks.size());
  for (size_t i = 0; i < tasks.size() && !options.given.empty(); ++i)
    facts[i] = GivenFiles(options.given, given_subject(model, tasks[i], options)).facts();
  for (const Run& run : options.runs) {
    require_backend(run.backend);
    for (size_t i = 0; i < tasks.size(); ++i) {
      const Task& task = tasks[i];
      try {
        run_budgets(run.policy.policy, run.budget, facts[i], budget_scope(model, task, options));
        require_known_to_backend(run, facts[i]);
      } catch (const InvalidPolicy& error) {
        throw InvalidPolicy(fmt::format("{}: policy {} at budget {}: {}", named(task),
                                        traces::quoted(run.policy.label), to_string(run.budget),
                                        error.what()));
      }
    }
  }
  return facts;
}

std::vector<Run> with_names(const std::vector<Run>& runs, const std::vector<GivenFacts>& facts) {
  std::vector<Run> named = with_names(runs, facts.front());
  const auto label_of = [](const Run& run) { return run.policy.label; };
  const auto agrees = [&](const GivenFacts& task) {
    return std::ranges::equal(with_names(runs, task), named, {}, label_of, label_of);
  };
  return std::ranges::all_of(facts, agrees) ? named : runs;
}

EvaluateResult evaluate(const traces::Checkpoint& checkpoint, const std::vector<Task>& tasks,
                        const EvaluateOptions& options, ResultsFile* finished,
                        const EvaluateProgress& progress) {
  require_valid(options, tasks, checkpoint.config());
  EvaluateResult result{checkpoint.config(), options, tasks, {}};
  int64_t done = 0, whole = 0;
  for (const Task& task : tasks) {
    if (!finished || !finished->find(task.id)) whole += work_of(task, options, checkpoint.config().layers);
  }
  for (const Task& task : tasks) {
    if (const TaskResult* known = finished ? finished->find(task.id) : nullptr) {
      require_fits(*known, task, options, static_cast<size_t>(checkpoint.config().layers), finished->path());
      result.results.push_back(*known);
      continue;
    }
    result.results.push_back(evaluate_task(checkpoint, task, options, [&](int64_t more) {
      done += more;
      if (progress) progress(done, whole);
    }));
    if (finished) finished->add(result.results.back());
  }
  return result;
}

}  // namespace kvbound::sim
