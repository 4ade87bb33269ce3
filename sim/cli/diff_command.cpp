#include <iostream>
#include <optional>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/diff/claims/dump_file.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/report/diff_report.hpp>
#include <kvbound/sim/report/table.hpp>
#include <kvbound/traces/output_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "agreement_verdict.hpp"
#include "commands.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kDiffDetails =
    R"(DUMP holds any of the tensors that `replay --dump` writes, in F64, F32, F16 or BF16. Its metadata names the
policy, the budget and the arithmetic that produced them. Error bounds for every number are derived from these: nothing
is tuned, and there are no tolerances to set. Kept and evicted entries are judged by the reference's scores, and all
later numbers on the cache that the dump's own choices produced; swaps that rounding explains are legal and counted.

Columns: error and bound where error/bound is largest, ulp of the type that the tensor is stored in;
bound/error is the median over elements, in the layer where the bounds are loosest; gain is the factor of the
output, as a whole, that rounding explains least, and how far rounding can take it from 1.

An output may be within its bounds and still be unlikely: beyond what roundings do that are independent and of mean zero, in a
row or in a sum over rows, with a probability of 1e-9 in all. A line on standard error and below the table then says so, and
which arithmetic that the dump does not declare would explain it. The exit code stays, unless --strict is given.

Examples:
  kvbound replay TRACE --policy snapkv+critical --budget 20% --dump dump.safetensors
  kvbound diff TRACE dump.safetensors --json diff.json
  kvbound diff TRACE dump.safetensors --strict

Exit code 0 if every number, and every output as a whole, is within its bound, 1 if one is not (the first wrong
tensor is named on standard error, and its worst element or row), 3 if the dump does not fit the trace, 5 if there was nothing to judge, or something is
undecided: a choice or number differs from the reference's, and the records do not show whether rounding explains it.
)";

CommandLine diff_command_line() {
  CommandLine line(
      "diff TRACE DUMP [options]: another implementation's results, such as a kernel's, against the reference",
      kDiffDetails);
  line.add("json", "FILE", "also write all figures as JSON (schema: sim/schemas/diff.schema.json)");
  line.add_flag("strict", "also exit with 1 where an output is unlikely by rounding");
  add_common_options(line);
  return line;
}

std::string trace_hash(const traces::Trace& trace, bool quiet) {
  Progress progress("hashing", !quiet);
  return trace.sha256([&](int64_t done, int64_t whole) { progress.update(done, whole); });
}

// Judges the dump's layers, with one layer in memory at a time.
void judge_layers(const traces::Trace& trace, const DumpFile& dump, bool quiet, DiffReport& report) {
  TestedImplementation implementation{report.dump.policy,   report.dump.entries,
                                      report.dump.steps,    report.dump.declared.arithmetic(),
                                      dump.input_storage(), dump.merged_storage()};
  Progress progress("judging " + dump.path(), !quiet);
  int64_t done = 0;
  for (const int64_t l : report.dump.layers) {
    implementation.entries = report.dump.layer_entries[l];
    const LayerClaims claims = dump.read_layer(l);
    const traces::Layer layer = trace.read_layer(l);
    try {
      for (TensorAgreement& found : agreement(layer, implementation, claims))
        report.tensors.push_back({l, std::move(found)});
    } catch (const NonFinite& error) {
      throw TraceError(trace.info().path, -1, fmt::format("layers.{}", l),
                       fmt::format("its numbers are too large for double precision: {}", error.what()));
    }
    progress.update(++done, std::ssize(report.dump.layers));
  }
}

}  // namespace

int diff_command(const Arguments& arguments) {
  CommandLine line = diff_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const bool quiet = line.has("quiet");
  const std::vector<std::string> paths = line.positionals("TRACE or DUMP", 2, 2);
  const traces::Trace trace(paths[0], header_options(line));
  const DumpFile dump(paths[1], trace.info(), header_options(line).header_limit);
  std::optional<traces::OutputFile> json;
  if (const auto path = line.text("json")) {
    OutputPaths outputs;
    for (const std::string& input : trace.paths()) outputs.add_input(input);
    outputs.add_input(dump.path());
    outputs.add("json", *path);
    json.emplace(*path);
  }

  DiffReport report{trace.info(), trace_hash(trace, quiet), dump.path(), dump.info(), {}};
  dump.require_trace(report.trace_sha256);
  judge_layers(trace, dump, quiet, report);
  std::cout << text_report(report, terminal_style());
  if (json) {
    json->write(json_report(report));
    json->prepare();
    flush_standard_output();
    json->commit();
  }
  return exit_code(report.summaries(), report.by_chance(), report.dump_path, {line.has("strict"), quiet});
}

}  // namespace kvbound::sim
