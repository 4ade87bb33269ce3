// Recorded decode steps through compression policies: which runs, and what they measured.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/measure/metrics.hpp>
#include <kvbound/sim/options/budget.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// A policy with the words that the user said it in.
struct NamedPolicy {
  std::string label;  ///< as typed
  Policy policy;
};

/// One policy at one budget on one backend.
struct Run {
  NamedPolicy policy;
  Budget budget;
  std::string backend;
};

/// Which part of a trace is replayed, and what is measured beside the perturbation.
struct Scope {
  std::vector<int64_t> layers;  ///< ascending
  int64_t steps = 0;            ///< the first so many decode steps
  int64_t recall_of = 40;       ///< of how many entries recall is measured, at most the prompt's
  bool merge_bounds = false;    ///< what merges did to later queries, and the bounds on it: costly
};

struct RunResult {
  Run run;
  int64_t entries = 0;  ///< the budget, in entries per KV head: the mean over all layers and heads
  std::vector<int64_t> layer_entries;  ///< [layers of the trace]: each layer's mean over its heads
  std::vector<LayerMetrics> layers;    ///< in the order of the scope's layers
  double compress_seconds = 0;         ///< wall time of all layers' prompt compression
  double step_seconds = 0;             ///< and of all their decode steps
  /// Another backend than the reference, beside which it ran: how its records agree, by layer.
  std::optional<std::vector<JudgedTensor>> agreement;
};

/// What a backend's operations took, over all runs. What depends on the layer alone is done once for all of them.
struct BackendTimes {
  std::string backend;
  OperationTimes operations;
};

struct ReplayResult {
  traces::TraceInfo trace;
  Scope scope;
  std::vector<RunResult> runs;
  std::vector<BackendTimes> times;  ///< in the order in which backends were named
};

/// Is shown each run's layer twice: when it has been recorded, and when it has been measured. The scores and
/// norms of the record are dropped in between, so that memory does not grow with the number of runs.
struct ReplayObserver {
  std::function<void(size_t run, int64_t layer, const LayerRecord&)> recorded;
  std::function<void(size_t run, int64_t layer, const LayerMetrics&)> measured;
};

/// Pieces of work done, pieces in all.
using ReplayProgress = std::function<void(int64_t, int64_t)>;

/// Throws InvalidPolicy, naming trace, policy and budget, if some run makes no sense for this trace; NoDevice.
void require_valid(const std::vector<Run>& runs, const traces::TraceInfo& trace);

/// Replays every run over the scope's layers, one layer in memory at a time.
///
/// Where the reference is among the backends, every other one's records are held against it (agreement.hpp).
/// Throws InvalidPolicy and NoDevice before any work; DeviceError; TraceError, also for numbers so large that attention over them overflows.
ReplayResult replay(const traces::Trace& trace, const std::vector<Run>& runs, const Scope& scope,
                    const ReplayObserver& observer = {}, const ReplayProgress& progress = {});

}  // namespace kvbound::sim
