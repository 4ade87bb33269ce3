#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/text_options.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/recall_report.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/output_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "commands.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kRecallDetails =
    R"(The true eviction error of a prompt entry j is || o - o_(-j) ||^2: the change of a decode step's output o if j alone is
evicted, where o is over the prompt's entries and those of the steps so far, this one's included. recall@k is the share of
the k entries of largest error that are also the k of largest score (ties: smaller index), per layer and query head: against
the errors of step 1, and against their mean over all steps. 'old' excludes the newest R prompt positions, which a recent
window would keep in any case, from both sets.

Scores, each summed over the last W queries of the prompt, of one query head, not pooled:
  attention  A
  value      A^2 || v ||^2: OBCache (arXiv:2510.07651), as are key and joint
  key        A^2 z^2 || v - o ||^2
  joint      A^2 || v + z (v - o) ||^2
  exact      || o - o_(-j) ||^2 of these queries
  eq-1       OBCache's eq. 1 without approximation: key and value zeroed, slot kept in the softmax

Exit code 5 if the trace has no decode step to measure the errors on.
)";

const std::vector<Example> kRecallExamples{
    {"kvbound recall traces/samples/pocket-mha.safetensors --k 40 --windows 1,8,16,32,64"},
    {"kvbound recall traces/samples/smollm2-135m.safetensors --recent 64 --layers 11-20 --json recall.json --csv recall.csv"},
};

CommandLine recall_command_line() {
  CommandLine line("recall TRACE [options]: how many of the entries that matter most a score finds",
                   kRecallDetails, kRecallExamples);
  line.add("k", "K", "size of the sets compared (default: 40)");
  line.add("windows", "W[,W]",
           "numbers of last prompt queries that score (default: those of 1,8,16,32,64 that are recorded)");
  line.add("recent", "R", "number of newest prompt positions that 'old' excludes (default: 32)");
  line.add("layers", "L[,L]", "layers, such as 0,3-5 (default: all)");
  add_columns_option(line, recall_columns());
  add_output_options(line, "layer, query head, score and window");
  add_text_options(line);
  add_common_options(line);
  return line;
}

std::vector<int64_t> parse_windows(const std::string& list, const traces::TraceInfo& info) {
  std::vector<int64_t> windows;
  for (const std::string& text : split_list("windows", list)) {
    const auto window = parse_integer(text);
    if (!window || *window < 1 || *window > info.window_queries) {
      throw UsageError(
          fmt::format("--windows {}: expected integers from 1 to the {} prompt queries that {} records",
                      traces::quoted(text), info.window_queries, info.path));
    }
    if (std::ranges::find(windows, *window) != windows.end())
      throw UsageError(fmt::format("--windows: {} is given twice", traces::quoted(text)));
    windows.push_back(*window);
  }
  return windows;
}

RecallOptions recall_options(const CommandLine& line, const traces::TraceInfo& info) {
  RecallOptions options;
  options.recent = line.integer("recent", 0, info.prompt_tokens - 1, options.recent);
  options.k = line.integer("k", 1, info.prompt_tokens, options.k);
  if (options.k > info.prompt_tokens - options.recent) {
    throw UsageError(fmt::format("--k {} and --recent {}: {} has {} prompt tokens, so {} candidates",
                                 options.k, options.recent, info.path, info.prompt_tokens,
                                 std::max<int64_t>(0, info.prompt_tokens - options.recent)));
  }
  if (const auto windows = line.text("windows")) {
    options.windows = parse_windows(*windows, info);
  } else {
    std::erase_if(options.windows, [&](int64_t window) { return window > info.window_queries; });
  }
  return options;
}

}  // namespace

int recall_command(const Arguments& arguments) {
  CommandLine line = recall_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const bool quiet = line.has("quiet");
  const traces::Trace trace(line.positionals("TRACE", 1, 1).front(), header_options(line));
  const RecallOptions options = recall_options(line, trace.info());
  const std::vector<int64_t> layers = chosen_layers(line, trace.info());
  const std::vector<std::string> columns = chosen_columns(line, recall_columns());
  OutputPaths taken;
  for (const std::string& input : trace.paths()) taken.add_input(input);
  Outputs outputs(line, taken, "recall");
  if (trace.info().decode_tokens == 0) {
    if (!quiet) {
      std::cerr << fmt::format("kvbound: {}: no decode step to know the eviction errors from\n",
                               one_line(without_middle(trace.info().path)));
    }
    return kInconclusive;
  }
  outputs.open();

  RecallReport report;
  if (outputs.has_json()) {
    Progress progress("hashing", !quiet);
    report.sha256 = trace.sha256([&](int64_t done, int64_t whole) { progress.update(done, whole); });
  }
  {
    Progress progress("measuring recall", !quiet);
    report.result =
        recall(trace, layers, options, [&](int64_t done, int64_t whole) { progress.update(done, whole); });
  }
  const Part part = recall_part(report);
  std::cout << text_report(report, part, text_style(line), columns);
  outputs.write(part, provenance());
  return kPass;
}

}  // namespace kvbound::sim
