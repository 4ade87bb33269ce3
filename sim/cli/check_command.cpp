#include <iostream>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/check/against.hpp>
#include <kvbound/sim/check/operations.hpp>
#include <kvbound/sim/diff/agreement_figures.hpp>
#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/text_options.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/report/check_against_report.hpp>
#include <kvbound/sim/report/check_report.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/traces/messages.hpp>

#include "agreement_verdict.hpp"
#include "commands.hpp"
#include "progress.hpp"
#include "replay_verdict.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kCheckDetails =
    R"(Operations, and the tensors of FILE (safetensors, or an .npz of NumPy's savez):
  attention  q [batch, query_heads, head_dim], or with qo_indptr [batch+1] (or one sequence) [queries, query_heads, head_dim];
             k, v [batch, tokens, kv_heads, head_dim] (with lengths [batch]), [total, kv_heads, head_dim] with kv_indptr
             [batch+1], or [pages, page_size, kv_heads, head_dim] with kv_indptr, kv_indices, kv_last_page_len;
             out as q; optional lse [.., query_heads]
  topk       scores [rows, n], indices [rows, k] (-1: no entry); optional lengths [rows], score_error [rows, n]
  compact    before [kv_heads, n, head_dim], kept, kept_offsets [kv_heads+1], after [kept rows, head_dim] or paged
  norms      v [n, kv_heads, head_dim], w_o [query_heads*head_dim, model_dim], norms [query_heads, n]
  scores     q [window, query_heads, head_dim], k [n, kv_heads, head_dim], score [kv_heads, m]; for some policies v, w_o
  merge      q, k, v; kept, kept_offsets; optional target_of, votes, merged_key, merged_value

Options may also stand in the file's metadata (.npz: arrays without dimensions), with _ for -. Bounds are derived from the
arithmetic that is declared; there are no tolerances. Columns as of `diff`.

With --against, A and B are two kernels' results: each is judged as above, by the arithmetic that its own file declares, and
those of the same inputs (a sequence of attention, a row of topk, the whole file of norms, scores and merge) are compared row
by row, as `diff --against` does it. So a sequence of a batch is held against the same sequence alone, wherever it stands.

Exit code 0 if every number is right, 1 if one is not (with --strict, also if an output is unlikely), 2 for a wrong option,
3 for a file that does not hold what the operation needs, 4 if it cannot be read, 5 if there was nothing to judge.

Exit code with --against: 0 if no row is wrong, 1 if one is, or with --identical if one is not identical, 5 if one of the
files alone would end so, or they have no inputs in common.
)";

const std::vector<Example> kCheckExamples{
    {"kvbound check attention traces/samples/calls/batch.npz"},
    {"kvbound check attention traces/samples/calls/batch.npz --splits 4 --json check.json"},
    {"kvbound check topk traces/samples/calls/topk.npz --score-error 1e-3"},
    {"kvbound check scores traces/samples/calls/scores.npz --policy snapkv:window=8"},
    {"kvbound check attention traces/samples/calls/batch.npz --against traces/samples/calls/alone.npz"},
    {"kvbound check attention traces/samples/calls/batch.npz --against traces/samples/calls/alone.npz --identical"},
};

CommandLine check_command_line() {
  CommandLine line(
      "check OPERATION (FILE | A --against B) [options]: a kernel's inputs and results, without a trace, against the reference",
      kCheckDetails, kCheckExamples);
  for (const CheckOption& option : check_options()) line.add(option.name, option.value, option.meaning);
  line.add("against", "B", "compare A with another kernel's results of the same inputs");
  line.add_flag("identical", "with --against: every row of the same inputs must be the same to the last bit");
  std::vector<Figure> columns = agreement_columns();
  const std::vector<Figure> of_rows = rows_columns();
  columns.insert(columns.end(), of_rows.begin(), of_rows.end());
  add_columns_option(line, columns);
  add_text_options(line);
  add_output_options(line, "tensor");
  line.add_flag("strict", "results that are unlikely by rounding end with exit code 1, too");
  add_common_options(line);
  return line;
}

// The options of the command line, by their names in files.
std::map<std::string, std::string> given_options(const CommandLine& line, std::string_view operation) {
  std::map<std::string, std::string> given;
  for (const CheckOption& option : check_options()) {
    const auto text = line.text(option.name);
    if (!text) continue;
    if (!option.is_of(operation))
      throw UsageError(fmt::format("--{} is of {}, not of {}", option.name, option.operations, operation));
    given.emplace(option.name_in_file(), *text);
  }
  return given;
}

// A fault of an option that was given on the command line.
[[noreturn]] void refuse_option(const TraceError& error, const CommandLine& line) {
  for (const CheckOption& option : check_options()) {
    const std::string field = "__metadata__." + option.name_in_file();
    if (error.field() != field || !line.has(option.name)) continue;
    const std::string text = error.what();
    throw UsageError(fmt::format("--{} {}", option.name, text.substr(text.find(field) + field.size() + 2)));
  }
  throw error;
}

CheckResult result_of(const CheckOperation& operation, CheckFile& file, const CommandLine& line) {
  Progress progress("checking " + file.path(), !line.has("quiet"));
  try {
    return operation.result(file, [&](int64_t done, int64_t all) { progress.update(done, all); });
  } catch (const TraceError& error) {
    refuse_option(error, line);
  }
}

int exit_code(const CheckReport& report, const Ending& ending) {
  return exit_code(report.summaries(), ChanceVerdict(report.tensors), report.path, ending);
}

int check_alone(const CheckOperation& operation, CheckFile& file, const CommandLine& line,
                const Ending& ending) {
  refuse_options(line, {"identical"}, "is for two files, with --against B");
  const std::vector<std::string> columns = chosen_columns(line, agreement_columns());
  Outputs outputs(line, std::vector{file.path()}, "check");
  const CheckReport report = check_report(operation, file, result_of(operation, file, line));
  const Part part = check_part(report);
  std::cout << text_report(report, part, text_style(line), columns);
  outputs.write(part, provenance());
  return exit_code(report, ending);
}

int check_against(const CheckOperation& operation, CheckFile& file, const CommandLine& line,
                  const Ending& ending) {
  CheckFile other(line.required("against"), header_options(line).header_limit,
                  given_options(line, operation.name));
  const std::vector<std::string> columns = chosen_columns(line, rows_columns());
  Outputs outputs(line, std::vector{file.path(), other.path()}, "check-against");
  const CheckResult a = result_of(operation, file, line);
  const CheckAgainstReport report = check_against_report(
      operation, {file, a}, {other, result_of(operation, other, line)}, line.has("identical"));
  const Part part = check_against_part(report);
  std::cout << text_report(report, part, text_style(line), columns);
  outputs.write(part, provenance());
  const int of_a = exit_code(report.a, ending);
  return exit_code(report.compared, worse(of_a, exit_code(report.b, ending)), ending);
}

}  // namespace

int check_command(const Arguments& arguments) {
  CommandLine line = check_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const std::vector<std::string> given = line.positionals("OPERATION or FILE", 2, 2);
  const CheckOperation& operation = check_operation(given[0]);
  CheckFile file(given[1], header_options(line).header_limit, given_options(line, operation.name));
  const Ending ending{line.has("strict"), line.has("quiet")};
  return line.has("against") ? check_against(operation, file, line, ending)
                             : check_alone(operation, file, line, ending);
}

}  // namespace kvbound::sim
