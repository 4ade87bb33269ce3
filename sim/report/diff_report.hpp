// The result of `diff`, as a table for people and as a part of a document.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/diff/agreement_summary.hpp>
#include <kvbound/sim/diff/claims/dump_file.hpp>
#include <kvbound/sim/diff/dump_rows.hpp>
#include <kvbound/sim/diff/unlikely.hpp>
#include <kvbound/sim/figures/cube.hpp>
#include <kvbound/sim/figures/table.hpp>
#include <kvbound/traces/trace.hpp>

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

/// A report to which no layer has been added yet. Throws TraceError unless the dump is of the trace.
///
/// sha256  the trace's
DiffReport diff_report(const traces::Trace& trace, const std::string& sha256, const DumpFile& dump);
/// Reads and judges one layer of a dump, and adds its tensors to the report. Throws TraceError, also for
/// numbers that are too large to compute with; as DumpFile::read_layer.
JudgedClaims judge_layer(const traces::Layer& layer, const DumpFile& dump, DiffReport& report);

/// What computed a dump: "backend cuda; storage BF16, accumulate F32, 8 splits".
std::string implementation_text(const DumpInfo& dump);
/// How much of the trace a dump has: "2 of 4 layers, 8 of 64 decode steps".
std::string extent_text(const DiffReport& report);

/// What the dump says of itself.
nlohmann::ordered_json dump_facts(const DiffReport& report);

/// Facts of the trace and the dump; agreement, tensors, functionals and chances (AgreementCubes), where in
/// `agreement` tensors that differ come first; unlikely. CSV has the tensors.
Part diff_part(const DiffReport& report);

/// The tables and sentences of a part, for a terminal.
std::string text_report(const DiffReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns = {});

}  // namespace kvbound::sim
