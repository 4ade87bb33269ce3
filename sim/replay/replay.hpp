// Replays recorded decode steps through compression policies: what is replayed, and what was measured.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/measure/metrics.hpp>
#include <kvbound/sim/options/given_files.hpp>
#include <kvbound/sim/options/runs.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// Which part of a trace is replayed, and what is measured besides the perturbation.
struct Scope {
  std::vector<int64_t> layers;  ///< ascending
  int64_t steps = 0;            ///< number of decode steps, the first ones
  int64_t recall_of = 40;       ///< number of entries that recall is measured on, at most the prompt's
  bool merge_bounds = false;   ///< whether to measure merges' effect on later queries, and its bounds: costly
  bool centred_bound = false;  ///< whether to measure LayerMetrics::centred_bound: costly
  bool device_times = false;   ///< whether to time every operation of a device, which is then waited for
  /// Rows of a page of the compressed caches of devices; 0: a KV head's rows lie one behind the other
  int64_t page_size = 0;
  /// Layers that share a budget, ascending, if this is a part of a larger replay; empty: `layers`
  std::vector<int64_t> budgeted = {};
};

struct RunResult {
  Run run;
  int64_t entries = 0;  ///< the budget, in entries per KV head: the mean over all layers and heads
  HeadBudgets budgets;  ///< of all layers of the trace
  std::vector<LayerMetrics> layers;  ///< in the order of the scope's layers
  double compress_seconds = 0;       ///< wall time of all layers' prompt compression
  double step_seconds = 0;           ///< wall time of all layers' decode steps
  /// The run's agreement with the reference, by layer; absent for the reference and where it did not run.
  std::optional<std::vector<JudgedTensor>> agreement;
};

/// Time of a backend's operations, over all runs. Work that depends on the layer alone
/// is done once for all runs.
struct BackendTimes {
  std::string backend;
  /// Empty for devices unless they are timed. The reference's include what measures the runs of all backends:
  /// "full_attention", "measurement" and, for runs that merge, "merge_measurement".
  OperationTimes operations;
};

struct ReplayResult {
  traces::TraceInfo trace;
  Scope scope;
  std::vector<RunResult> runs;
  std::vector<BackendTimes> times;  ///< in the order in which the backends were named
};

/// Called twice for each run and layer: after recording and after measuring. The record's scores and norms
/// are dropped in between, so that memory does not grow with the number of runs.
struct ReplayObserver {
  std::function<void(size_t run, int64_t layer, const LayerRecord&)> recorded;
  std::function<void(size_t run, int64_t layer, const LayerMetrics&)> measured;
};

/// Called with the number of work items done, and their total.
using ReplayProgress = std::function<void(int64_t, int64_t)>;

/// Throws InvalidPolicy, naming trace, policy and budget, if a run is not valid for this trace; NoDevice.
///
/// facts  of the files of runs whose host is `given`
void require_valid(const std::vector<Run>& runs, const traces::TraceInfo& trace, const Scope& scope,
                   const GivenFacts& facts = {});

/// A result to which no layer has been added yet: the runs' budgets in entries, and their names.
ReplayResult empty_result(const traces::TraceInfo& trace, const std::vector<Run>& runs, const Scope& scope,
                          const GivenFacts& facts = {});

/// Replays every run over the scope's layers; with several threads the next layer is read meanwhile, so that
/// two are in memory. Devices take the decode steps of as many layers together as fit (layers_at_once).
///
/// given  the trace's files of runs whose host is `given`
///
/// If the reference is among the backends, the records of all others are compared with it (agreement.hpp).
/// Throws InvalidPolicy and NoDevice before any work; DeviceError; TraceError, also for numbers so large that
/// attention over them overflows.
ReplayResult replay(const traces::Trace& trace, const std::vector<Run>& runs, const Scope& scope,
                    const ReplayObserver& observer = {}, const ReplayProgress& progress = {},
                    const GivenFiles& given = {});

}  // namespace kvbound::sim
