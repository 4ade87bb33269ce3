// The result of `diff`, as a table for people and as JSON for programs (diff.schema.json).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/diff/claims/dump_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "agreement_report.hpp"

#include "table.hpp"
#include "unlikely.hpp"

namespace kvbound::sim {

struct DiffReport {
  traces::TraceInfo trace;
  std::string trace_sha256;
  std::string dump_path;
  DumpInfo dump;
  std::vector<JudgedTensor> tensors;  ///< by layer, then in the order of dump_tensors()

  /// One for each tensor that the dump has, in the order of dump_tensors().
  std::vector<TensorSummary> summaries() const { return sim::summaries(tensors, dump.tensors); }
  ChanceVerdict by_chance() const { return ChanceVerdict(tensors); }  ///< on the outputs that do not differ
};

/// A table for a terminal, one row per tensor; tensors that differ come first.
std::string text_report(const DiffReport& report, const TextStyle& style);

std::string json_report(const DiffReport& report);

}  // namespace kvbound::sim
