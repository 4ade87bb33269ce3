// A replay's results as cubes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/figures/cube.hpp>

#include "replay.hpp"

namespace kvbound::sim {

/// The results of one trace, and the trace's hash.
struct ReplayReport {
  ReplayResult result;
  std::string sha256;  ///< of the trace; empty if no output needs it
};

/// What a trace is: path, hash, model and shape.
nlohmann::ordered_json trace_facts(const traces::TraceInfo& info, const std::string& sha256);

/// The columns that the table of runs can have besides policy and budget, for --columns.
std::vector<Figure> replay_columns();

/// Some of a trace's layers, by the model's own numbers.
SharedAxis layer_axis(const traces::TraceInfo& info, const std::vector<int64_t>& layers);

/// A trace's part of the document.
///
///     runs         [run]                      means over layers, steps and heads
///     layers       [run, layer]               entries per KV head
///     layer_steps  [run, layer, step]         of all heads of a layer together
///     heads        [run, layer, head]         means over the steps
///     kv_heads     [run, layer, KV head]      at the prompt's end
///     steps        [run, layer, step, head]   in CSV alone, with layer_steps
///     merges       a list of the merges of every run, layer, time and query head
///     times        a list of the backends' operations
///     agreement, tensors, functionals, chances   AgreementCubes, of runs that were
///                                                compared with the reference
///
/// base    the policy that improved_heads is counted over
/// detail  for tables: runs, times and agreement; for documents: all but `steps`; for rows: all
enum class ReplayDetail { table, document, rows };
Part replay_part(const ReplayReport& report, const std::optional<Policy>& base, ReplayDetail detail);

}  // namespace kvbound::sim
