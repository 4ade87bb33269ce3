#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include <kvbound/cuda/session/page_rules.hpp>
#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/text_options.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/backend.hpp>
#include <kvbound/sim/replay/dump.hpp>
#include <kvbound/sim/replay/dump_targets.hpp>
#include <kvbound/sim/replay/replay.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/replay_report.hpp>
#include <kvbound/traces/output_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "commands.hpp"
#include "progress.hpp"
#include "replay_verdict.hpp"
#include "run_options.hpp"

namespace kvbound::sim {
namespace {

std::string replay_details() {
  return policy_help() + R"(
Budgets count the entries kept per KV head, always-kept ones included: 256, or 20% of the prompt.

Where the reference is among several backends, all that the others recorded is compared with it, element by element,
within bounds derived for single precision.

Columns that apply to no run, such as those about merges, are left out.

Exit code 1 if a bound is violated, a merge that should be lossless is not, or a backend does not agree with the
reference; 5 if the trace has no decode step to measure or there is no device.
)";
}

const std::vector<Example> kReplayExamples{
    {"kvbound replay traces/samples/pocket-gqa.safetensors --policy snapkv,snapkv+critical --base snapkv --budget 5%,20%"},
    {"kvbound replay traces/samples/pocket-mha.safetensors traces/samples/smollm2-135m.safetensors --policy snapkv:window=16+theta-sweep:norm=l2 --budget 128 --json out.json --dump dumps/"},
    {"kvbound replay traces/samples/smollm2-135m.safetensors --policy h2o+exact,tova+obcache-joint --budget 20% --layers 11-20 --recall 100 --columns perturbation,recall"},
    {"kvbound replay traces/samples/smollm2-135m.safetensors --policy snapkv,snapkv+keepkv,snapkv+convex --budget 20% --merge-bounds --csv merges.csv"},
    {"kvbound replay traces/samples/pocket-gqa.safetensors --policy h2o,h2o+obcache-joint --budget 20% --heads query --columns layer_relative,bytes"},
    {"kvbound replay traces/samples/pocket-mha.safetensors --policy snapkv+critical --budget 20% --backend reference,emulated"},
    {"kvbound replay traces/samples/pocket-gqa.safetensors --policy snapkv+critical --budget 20% --backend reference,cuda",
     "a GPU"},
};

// The command line's options, before they are applied to a trace.
struct Request {
  std::vector<Run> runs;
  std::optional<Policy> base;
  std::optional<std::string> dump;
  std::vector<std::string> columns;
  TextStyle style;
  int64_t recall_of = 40;
  bool merge_bounds = false, centred_bound = false;
  bool device_times = false;
  int64_t page_size = 0;
  bool quiet = false;
};

std::vector<std::string> parse_backends(const CommandLine& line) {
  if (!line.has("backend")) return {std::string(kReference)};
  return parse_list<std::string>(line, "backend", [](const std::string& name) {
    require_backend(name);
    return name;
  });
}

int64_t parse_page_size(const CommandLine& line, const std::vector<Run>& runs) {
  if (!line.has("page-size")) return 0;
  const int64_t rows = line.integer("page-size", cuda::kLeastPageSize, cuda::kMostPageSize, 0);
  if (!cuda::is_page_size(rows)) {
    throw UsageError(fmt::format("--page-size: {} is not a power of two", rows));
  }
  if (std::ranges::all_of(runs, [](const Run& run) { return run.backend == kReference; }))
    throw UsageError("--page-size: the reference has no pages; name a device in --backend");
  return rows;
}

Request parse_request(const CommandLine& line) {
  Request request;
  RunChoice choice = parse_runs(line, parse_backends(line));
  request.runs = std::move(choice.runs);
  request.base = std::move(choice.base);
  request.columns = chosen_columns(line, replay_columns());
  request.style = text_style(line);
  request.recall_of = line.integer("recall", 1, INT64_MAX, request.recall_of);
  request.merge_bounds = line.has("merge-bounds");
  request.centred_bound = line.has("centred-bound");
  request.device_times = line.has("times");
  request.page_size = parse_page_size(line, request.runs);
  request.dump = line.text("dump");
  request.quiet = line.has("quiet");
  return request;
}

Scope scope_of(const CommandLine& line, const Request& request, const traces::TraceInfo& info) {
  if (line.has("steps") && info.decode_tokens == 0) {
    throw UsageError(fmt::format("--steps: {} has no decode steps", without_middle(info.path)));
  }
  return {chosen_layers(line, info),
          line.has("steps") ? line.integer("steps", 1, info.decode_tokens, 0) : info.decode_tokens,
          std::min(request.recall_of, info.prompt_tokens),
          request.merge_bounds,
          request.centred_bound,
          request.device_times,
          request.page_size};
}

std::string hash_of(const traces::Trace& trace, const Request& request) {
  Progress progress("hashing", !request.quiet);
  return trace.sha256([&](int64_t done, int64_t whole) { progress.update(done, whole); });
}

// A trace, and what is replayed of it.
struct TraceReplay {
  TraceReplay(traces::Trace opened, const CommandLine& line, const Request& request,
              const GivenSources& sources)
      : trace(std::move(opened)), scope(scope_of(line, request, trace.info())) {
    if (!sources.empty()) {
      sha256 = hash_of(trace, request);
      given = GivenFiles(sources, given_subject(trace.info(), sha256, scope.layers));
    }
    require_valid(request.runs, trace.info(), scope, given.facts());
  }

  traces::Trace trace;
  Scope scope;
  std::string sha256;  // empty: not known yet
  GivenFiles given;
};

ReplayReport replay_trace(const TraceReplay& chosen, const Request& request, const std::string& spool_folder,
                          bool hashed, std::vector<Dump>& dumps) {
  const traces::Trace& trace = chosen.trace;
  ReplayReport report;
  report.sha256 = chosen.sha256;
  if ((hashed || request.dump) && report.sha256.empty()) report.sha256 = hash_of(trace, request);
  if (request.dump) {
    for (const Run& run : request.runs)
      dumps.emplace_back(run, trace.info(), report.sha256, spool_folder, chosen.given.facts());
  }
  ReplayObserver observer;
  if (request.dump) {
    observer.recorded = [&](size_t run, int64_t layer, const LayerRecord& record) {
      dumps[run].add(layer, record);
    };
    observer.measured = [&](size_t run, int64_t layer, const LayerMetrics& metrics) {
      dumps[run].add(layer, metrics);
    };
  }
  Progress progress("replaying " + trace.info().path, !request.quiet);
  report.result = replay(
      trace, request.runs, chosen.scope, observer,
      [&](int64_t done, int64_t whole) { progress.update(done, whole); }, chosen.given);
  return report;
}

CommandLine replay_command_line() {
  CommandLine line("replay TRACE... --policy P[,P] --budget B[,B] [options]: decode steps through policies",
                   replay_details(), kReplayExamples);
  line.add("policy", "P[,P]", "policies (below)");
  line.add("budget", "B[,B]", "budgets: a count, or a share of the prompt such as 20%");
  line.add("base", "P",
           "count the heads that each policy improves over this one; replayed too if not in --policy");
  line.add(
      "backend", "B[,B]",
      "backends (default: reference): reference, emulated (the CUDA kernels on this processor), cuda (on a GPU)");
  add_heads_option(line);
  line.add("layers", "L[,L]", "layers, such as 0,3-5 (default: all)");
  line.add("steps", "N", "only the first N decode steps");
  line.add("recall", "K",
           "measure recall on the K prompt entries whose eviction would change the first step's outputs most "
           "(default: 40, at most the prompt's)");
  line.add_flag(
      "merge-bounds",
      "for policies that merge: also measure merges' effect on later queries, and KeepKV's bounds on it (costly)");
  line.add_flag(
      "centred-bound",
      "also measure the bound with each value's distance from the full output, which is smaller (costly)");
  line.add_flag("times", "measure the time of every operation of a device, each of which is then waited for");
  line.add(
      "page-size", "ROWS",
      "store the compressed caches of devices in pages of so many rows, a power of two from 64 to 65536, by a "
      "page table for each KV head: results are the same, bit by bit");
  add_columns_option(line, replay_columns());
  add_output_options(line, "layer, step and query head");
  line.add("dump", "FILE|DIR",
           "write the recorded decisions and outputs: one run to a file, several to a folder");
  add_text_options(line);
  add_common_options(line);
  return line;
}

}  // namespace

int replay_command(const Arguments& arguments) {
  CommandLine line = replay_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const Request request = parse_request(line);

  const std::vector<std::string> paths = line.positionals("TRACE", 1, SIZE_MAX);
  std::vector<traces::Trace> opened;
  OutputPaths taken;
  for (const std::string& path : paths) {
    const traces::Trace& trace = opened.emplace_back(path, trace_options(line));
    for (const std::string& input : trace.paths()) taken.add_input(input);
  }
  const GivenSources sources = given_sources(request.runs);
  for (const std::string& path : named_files(request.runs)) taken.add_input(path);
  std::vector<TraceReplay> traces;
  for (traces::Trace& trace : opened) traces.emplace_back(std::move(trace), line, request, sources);
  Outputs outputs(line, taken, "replay");
  std::optional<DumpTargets> targets;
  if (request.dump) targets.emplace(*request.dump, paths, request.runs, taken);
  outputs.open();

  int code = kPass;
  std::vector<std::vector<Dump>> dumps(traces.size());
  for (size_t i = 0; i < traces.size(); ++i) {
    const std::string spool_folder = targets ? targets->spool_folder() : "";
    const ReplayReport report = replay_trace(traces[i], request, spool_folder, outputs.has_json(), dumps[i]);
    if (targets) targets->make_folders();
    for (size_t r = 0; r < dumps[i].size(); ++r) dumps[i][r].prepare(targets->path(i, request.runs[r]));
    const Part part = replay_part(report, request.base, replay_detail(outputs, request.style));
    std::cout << (i > 0 ? "\n" : "") << text_report(report, part, request.style, request.columns)
              << std::flush;
    outputs.add(part);
    code = worse(code, replay_verdict(report, request.quiet));
  }
  outputs.prepare(provenance());
  flush_standard_output();
  for (std::vector<Dump>& trace_dumps : dumps) {
    for (Dump& dump : trace_dumps) dump.commit();
  }
  outputs.commit();
  return code;
}

}  // namespace kvbound::sim
