#include <iostream>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/diff/agreement_figures.hpp>
#include <kvbound/sim/diff/claims/dump_file.hpp>
#include <kvbound/sim/diff/dump_rows.hpp>
#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/text_options.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/report/against_report.hpp>
#include <kvbound/sim/report/diff_report.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/floor_report.hpp>
#include <kvbound/traces/trace.hpp>

#include "agreement_verdict.hpp"
#include "commands.hpp"
#include "diff_floor.hpp"
#include "progress.hpp"
#include "replay_verdict.hpp"

namespace kvbound::sim {
namespace {

const std::string kDiffDetails =
    R"(DUMP holds any of the tensors that `replay --dump` writes, in F64, F32, F16 or BF16. Its metadata names the
policy, the budget and the arithmetic that produced them. Error bounds for every number are derived from these: nothing
is tuned, and there are no tolerances to set. Kept and evicted entries are judged by the reference's scores, and all
later numbers on the cache that the dump's own choices produced; swaps that rounding explains are legal and counted.

Columns: error and bound where error/bound is largest, ulp of the type that the tensor is stored in;
bound/error is the median over elements, in the layer where the bounds are loosest; gain is the factor of an
output, a merged entry, or a head's scores or norms, as a whole, that rounding explains least, and how far rounding
can take it from 1.

An output may be within its bounds and still be unlikely: beyond what independent roundings do in a row, or in a sum
over rows, but for a probability of 1e-9 in all. A line on standard error and below the table says so, and which
arithmetic that the dump does not declare would explain it. The exit code stays the same, unless --strict is given.

If outputs differ and one fault explains them, it is named: a factor, logits with another scale or base, swapped heads,
entries that are missing or counted twice, padding in the denominator. Of scores, norms, votes and merged entries, a factor.

With --against, A and B are two dumps of one policy and budget: of two kernels, two GPUs, two versions, two batch
sizes. Each is judged as above, by the arithmetic that its own metadata declare. Every row that both have, which is
what one KV head or query head has in a tensor (at one step, if the tensor has steps), is

  identical     the same to the last bit
  reordered     not, but rounding explains both: another order of additions, or a choice between near ties
  other cache   right in both, but of caches that an earlier choice made different
  undecided     in one of them nothing tells right from wrong
  wrong: A, wrong: B, both wrong    outside the bounds

ulps is the largest distance of two elements of reordered rows, in units in the last place of the larger one, where the
type is the coarsest of the tensors' and accumulators'; of row, in those of the row's largest number; farthest, where.

What only one of them has is judged, too. Batch-invariant kernels want --identical: A of the batch, B of the row alone.

Exit code 0 if every number, and every output as a whole, is within its bound, 1 if one is not (the first wrong
tensor is named on standard error, and its worst element or row), 3 if the dump does not fit the trace, 5 if there was
nothing to judge, or something is undecided: a choice or number differs from the reference's, and the records do not
show whether rounding explains it.

Exit code with --against: 0 if no row is wrong, 1 if one is, or with --identical if one is not identical, 3 also if
policies or budgets differ, 5 if one of the dumps alone would end so, or they have no row in common.
)";

const std::vector<Example> kDiffExamples{
    {"kvbound replay traces/samples/pocket-mha.safetensors --policy snapkv+critical --budget 20% --dump reference.safetensors"},
    {"kvbound replay traces/samples/pocket-mha.safetensors --policy snapkv+critical --budget 20% --backend emulated --dump emulated.safetensors"},
    {"kvbound diff traces/samples/pocket-mha.safetensors emulated.safetensors --strict --json diff.json"},
    {"kvbound diff reference.safetensors emulated.safetensors --against traces/samples/pocket-mha.safetensors --json against.json"},
    {"kvbound diff emulated.safetensors emulated.safetensors --against traces/samples/pocket-mha.safetensors --identical"},
    {"kvbound diff --floor head_dim=128 --tokens 512,2048 --storage BF16 --weights BF16"},
    {"kvbound diff --floor traces/samples/smollm2-135m.safetensors --layers 11 --storage BF16 --weights BF16 --partials BF16 --splits 8"},
};

CommandLine diff_command_line() {
  CommandLine line(
      "diff (TRACE DUMP | A B --against TRACE | --floor TRACE|SHAPE) [options]: results, such as a kernel's, against the "
      "reference",
      kDiffDetails + floor_details(), kDiffExamples);
  line.add("against", "TRACE",
           "compare two dumps of this trace, A and B, with each other and with the reference");
  line.add_flag("identical", "with --against: every row that both have must be the same to the last bit");
  std::vector<Figure> columns = agreement_columns();
  for (const std::vector<Figure>& more : {rows_columns(), floor_columns()})
    columns.insert(columns.end(), more.begin(), more.end());
  add_columns_option(line, columns);
  add_text_options(line);
  add_output_options(line, "tensor and layer, or of floors operation");
  line.add_flag("strict", "also exit with 1 where an output is unlikely by rounding");
  add_floor_options(line);
  add_common_options(line);
  return line;
}

// How the trace of a dump is opened.
traces::Trace::Options options_for(const CommandLine& line, const std::string& dump) {
  traces::Trace::Options options = header_options(line);
  options.heads = cache_heads_of_dump(dump, options.header_limit);
  return options;
}

std::string trace_hash(const traces::Trace& trace, bool quiet) {
  Progress progress("hashing", !quiet);
  return trace.sha256([&](int64_t done, int64_t whole) { progress.update(done, whole); });
}

// Judges the dump's layers, with one layer in memory at a time.
void judge_layers(const traces::Trace& trace, const DumpFile& dump, bool quiet, DiffReport& report) {
  Progress progress("judging " + dump.path(), !quiet);
  int64_t done = 0;
  for (const int64_t l : report.dump.layers) {
    judge_layer(trace.read_layer(l), dump, report);
    progress.update(++done, std::ssize(report.dump.layers));
  }
}

int exit_code(const DiffReport& report, const Ending& ending) {
  return exit_code(report.summaries(), report.by_chance(), report.dump_path, ending);
}

// The files that a comparison reads.
std::vector<std::string> inputs_of(const traces::Trace& trace, std::initializer_list<std::string> dumps) {
  std::vector<std::string> inputs = trace.paths();
  inputs.insert(inputs.end(), dumps);
  return inputs;
}

int diff_with_trace(const CommandLine& line, bool quiet) {
  const std::vector<std::string> paths = line.positionals("TRACE or DUMP", 2, 2);
  refuse_options(line, {"identical"}, "is for two dumps, with --against TRACE");
  const traces::Trace trace(paths[0], options_for(line, paths[1]));
  const DumpFile dump(paths[1], trace.info(), header_options(line).header_limit);
  const std::vector<std::string> columns = chosen_columns(line, agreement_columns());
  Outputs outputs(line, inputs_of(trace, {dump.path()}), "diff");
  DiffReport report = diff_report(trace, trace_hash(trace, quiet), dump);
  judge_layers(trace, dump, quiet, report);
  const Part part = diff_part(report);
  std::cout << text_report(report, part, text_style(line), columns);
  outputs.write(part, provenance());
  return exit_code(report, {line.has("strict"), quiet});
}

// Throws TraceError if two dumps are of different runs.
void require_same_run(const DumpFile& a, const DumpFile& b) {
  const auto refuse = [&](const char* field, const std::string& own, const std::string& other) {
    if (own == other) return;
    throw TraceError(b.path(), -1, fmt::format("__metadata__.{}", field),
                     fmt::format("is {}, but that of {} is {}", other, one_line(a.path()), own));
  };
  refuse("policy", canonical(a.info().policy), canonical(b.info().policy));
  if (a.info().budgets != b.info().budgets)
    refuse("budget", to_string(a.info().budget), to_string(b.info().budget));
}

// Judges the layers of both dumps, and compares the rows of those that both have, with one
// layer in memory at a time.
void compare_layers(const traces::Trace& trace, const DumpFile& a, const DumpFile& b, bool quiet,
                    AgainstReport& report) {
  Progress progress("judging " + a.path() + " and " + b.path(), !quiet);
  const std::set<int64_t> of_a(a.info().layers.begin(), a.info().layers.end()),
      of_b(b.info().layers.begin(), b.info().layers.end());
  std::set<int64_t> all = of_a;
  all.insert(of_b.begin(), of_b.end());
  int64_t done = 0;
  for (const int64_t l : all) {
    const traces::Layer layer = trace.read_layer(l);
    std::optional<JudgedClaims> own, other;
    if (of_a.contains(l)) own = judge_layer(layer, a, report.a);
    if (of_b.contains(l)) other = judge_layer(layer, b, report.b);
    if (own && other) report.compared.layers.push_back({l, compare_layer_rows(layer.shape, *own, *other)});
    progress.update(++done, std::ssize(all));
  }
}

int exit_code(const AgainstReport& report, const Ending& ending) {
  const int of_a = exit_code(report.a, ending);
  return exit_code(report.compared, worse(of_a, exit_code(report.b, ending)), ending);
}

int diff_against(const CommandLine& line, bool quiet) {
  const std::vector<std::string> paths = line.positionals("A or B", 2, 2);
  const traces::Trace trace(line.required("against"), options_for(line, paths[0]));
  const DumpFile a(paths[0], trace.info(), header_options(line).header_limit),
      b(paths[1], trace.info(), header_options(line).header_limit);
  require_same_run(a, b);
  const std::vector<std::string> columns = chosen_columns(line, rows_columns());
  Outputs outputs(line, inputs_of(trace, {a.path(), b.path()}), "against");
  const std::string sha256 = trace_hash(trace, quiet);
  AgainstReport report{
      diff_report(trace, sha256, a), diff_report(trace, sha256, b), {{}, line.has("identical")}};
  compare_layers(trace, a, b, quiet, report);
  const Part part = against_part(report);
  std::cout << text_report(report, part, text_style(line), columns);
  outputs.write(part, provenance());
  return exit_code(report, {line.has("strict"), quiet});
}

}  // namespace

int diff_command(const Arguments& arguments) {
  CommandLine line = diff_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  if (print_floors(line)) return kPass;
  const bool quiet = line.has("quiet");
  return line.has("against") ? diff_against(line, quiet) : diff_with_trace(line, quiet);
}

}  // namespace kvbound::sim
