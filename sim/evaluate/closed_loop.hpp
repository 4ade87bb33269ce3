// One task in a closed loop: what a model says when it reads and decodes through compressed caches.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/options/given_files.hpp>
#include <kvbound/sim/options/runs.hpp>
#include <kvbound/traces/models/checkpoint.hpp>

#include "task_result.hpp"
#include "tasks.hpp"

namespace kvbound::sim {

struct EvaluateOptions {
  std::vector<Run> runs;     ///< all on one backend
  GivenSources given = {};   ///< given_sources of these
  Dtype dtype = Dtype::f32;  ///< queries, keys and values are rounded to it: F32, F16 or BF16
  traces::CacheHeads heads = traces::CacheHeads::kv;  ///< which heads have a cache
  int64_t window = 128;    ///< prompt queries that policies are given: the last ones before compression
  int64_t recall_of = 40;  ///< Scope::recall_of, at most the compressed tokens

  /// Prompt queries that policies are given at a compression behind so many tokens.
  int64_t window_of(int64_t tokens) const { return tokens < window ? tokens : window; }
};

/// The shape of the model's layers.
LayerShape shape_of(const traces::ModelConfig& model);

BudgetScope budget_scope(const traces::ModelConfig& model, const Task& task, const EvaluateOptions& options);

/// What a file for a task must be of, for runs whose host is `given`.
traces::GivenSubject given_subject(const traces::ModelConfig& model, const Task& task,
                                   const EvaluateOptions& options);

/// The decode steps of a task: the tokens from `compress_at` on, but for the last, behind
/// which nothing is predicted.
inline int64_t steps_of(const Task& task) {
  return std::ssize(task.prompt) - task.compress_at + std::ssize(task.target) - 1;
}
/// Tokens times layers that a task takes through the model: its unit of progress.
int64_t work_of(const Task& task, const EvaluateOptions& options, int64_t layers);

/// The first `compress_at` tokens are read with the full cache. Every layer's cache is then compressed by
/// each run's policy, and the tokens behind are decoded (their choice is given) by a sequence per run, each
/// through separate caches, and by one with the full cache. Policies that evict or merge while decoding do so
/// in the keys and values of their own sequence.
///
/// L and its bounds are open loop: measured as `kvbound replay` does on the trace of the sequence with the
/// full cache, on whose keys, values and queries each policy then works.
///
/// Layer by layer, all steps together (lockstep.hpp): memory is that of one layer's sessions, one after the
/// other, of the prompt's cache and of all sequences' hidden states.
///
/// task      every run must be valid for it
/// advance   called with the work that has been done since the last call, in units of work_of; may be empty
/// throws    NonFinite if numbers overflow; TraceError and IoError from reading weights; DeviceError
TaskResult run_closed_loop(const traces::Checkpoint& checkpoint, const Task& task,
                           const EvaluateOptions& options, const std::function<void(int64_t)>& advance);

}  // namespace kvbound::sim
