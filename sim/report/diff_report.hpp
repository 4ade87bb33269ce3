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
  Verdict verdict() const { return sim::verdict(summaries()); }       ///< on all of them
  ChanceVerdict by_chance() const { return ChanceVerdict(tensors); }  ///< on the outputs that do not differ
};

/// What computed a dump: "backend cuda; storage BF16, accumulate F32, 8 splits".
std::string implementation_text(const DumpInfo& dump);
/// How much of the trace a dump has: "2 of 4 layers, 8 of 64 decode steps".
std::string extent_text(const DiffReport& report);

/// What the dump says of itself, in a JSON document.
nlohmann::ordered_json dump_json(const DiffReport& report);

/// A table for a terminal, one row per tensor; tensors that differ come first.
std::string text_report(const DiffReport& report, const TextStyle& style);

std::string json_report(const DiffReport& report);

}  // namespace kvbound::sim
