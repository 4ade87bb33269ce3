#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/backend.hpp>
#include <kvbound/sim/replay/dump.hpp>
#include <kvbound/sim/replay/dump_targets.hpp>
#include <kvbound/sim/replay/replay.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/report.hpp>
#include <kvbound/sim/report/table.hpp>
#include <kvbound/traces/output_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "commands.hpp"
#include "progress.hpp"
#include "replay_verdict.hpp"
#include "run_options.hpp"
#include "text_options.hpp"

namespace kvbound::sim {
namespace {

std::string replay_details() {
  return policy_help() +
         "\nBudgets count the entries kept per KV head, always-kept ones included: 256, or 20% of the prompt.\n"
         "\nExamples:\n"
         "  kvbound replay traces/samples/pocket-gqa.safetensors --policy snapkv,snapkv+critical \\\n"
         "      --base snapkv --budget 5%,20%\n"
         "  kvbound replay a.safetensors b.safetensors --policy snapkv:window=16+theta-sweep:norm=l2 \\\n"
         "      --budget 256 --layers 0,3-5 --json out.json --dump dumps/\n"
         "  kvbound replay a.safetensors --policy snapkv+critical --budget 20% --backend reference,emulated\n"
         "  kvbound replay a.safetensors --policy h2o+exact,tova+obcache-joint --budget 20% \\\n"
         "      --recall 100 --columns perturbation,recall\n"
         "  kvbound replay a.safetensors --policy snapkv,snapkv+keepkv,snapkv+convex --budget 20% \\\n"
         "      --merge-bounds --csv merges.csv\n"
         "\nWhere the reference is among several backends, all that the others recorded is compared with it,\n"
         "element by element, within bounds derived for single precision.\n"
         "\nColumns that apply to no run, such as those about merges, are left out.\n"
         "\nExit code 1 if a bound is violated, a merge that should be lossless is not, or a backend does not\n"
         "agree with the reference; 5 if the trace has no decode step to measure or there is no device.\n";
}

// The command line's options, before they are applied to a trace.
struct Request {
  std::vector<Run> runs;
  std::optional<Policy> base;
  std::optional<std::string> json, csv, dump;
  std::vector<std::string> columns;
  TextStyle style;
  int64_t recall_of = 40;
  bool merge_bounds = false;
  bool device_times = false;
  bool quiet = false;
};

std::vector<std::string> parse_backends(const CommandLine& line) {
  if (!line.has("backend")) return {std::string(kReference)};
  return parse_list<std::string>(line, "backend", [](const std::string& name) {
    require_backend(name);
    return name;
  });
}

Request parse_request(const CommandLine& line) {
  Request request;
  RunChoice choice = parse_runs(line, parse_backends(line));
  request.runs = std::move(choice.runs);
  request.base = std::move(choice.base);
  request.columns = chosen_columns(line);
  request.style = text_style(line);
  request.recall_of = line.integer("recall", 1, INT64_MAX, request.recall_of);
  request.merge_bounds = line.has("merge-bounds");
  request.device_times = line.has("times");
  request.json = line.text("json");
  request.csv = line.text("csv");
  request.dump = line.text("dump");
  request.quiet = line.has("quiet");
  return request;
}

Scope scope_of(const CommandLine& line, const Request& request, const traces::TraceInfo& info) {
  if (line.has("steps") && info.decode_tokens == 0) {
    throw UsageError(fmt::format("--steps: {} has no decode steps", without_middle(info.path)));
  }
  return {chosen_layers(line, info.layers),
          line.has("steps") ? line.integer("steps", 1, info.decode_tokens, 0) : info.decode_tokens,
          std::min(request.recall_of, info.prompt_tokens), request.merge_bounds, request.device_times};
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
    require_valid(request.runs, trace.info(), given.facts());
  }

  traces::Trace trace;
  Scope scope;
  std::string sha256;  // empty: not known yet
  GivenFiles given;
};

Report replay_trace(const TraceReplay& chosen, const Request& request, const std::string& spool_folder,
                    std::vector<Dump>& dumps) {
  const traces::Trace& trace = chosen.trace;
  Report report;
  report.sha256 = chosen.sha256;
  if ((request.json || request.dump) && report.sha256.empty()) report.sha256 = hash_of(trace, request);
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
                   replay_details());
  line.add("policy", "P[,P]", "policies (grammar below)");
  line.add("budget", "B[,B]", "budgets: a count, or a share of the prompt such as 20%");
  line.add("base", "P",
           "count the heads that each policy improves over this one; replayed too if not in --policy");
  line.add(
      "backend", "B[,B]",
      "backends (default: reference): reference, emulated (the CUDA kernels on this processor), cuda (on a GPU)");
  line.add("layers", "L[,L]", "layers, such as 0,3-5 (default: all)");
  line.add("steps", "N", "only the first N decode steps");
  line.add("recall", "K",
           "measure recall on the K prompt entries whose eviction would change the first step's outputs most "
           "(default: 40, at most the prompt's)");
  line.add_flag(
      "merge-bounds",
      "for policies that merge: also measure merges' effect on later queries, and KeepKV's bounds on it (costly)");
  line.add_flag("times", "measure the time of every operation of a device, each of which is then waited for");
  add_columns_option(line);
  line.add("json", "FILE", "write all figures as JSON (schema: sim/schemas/replay.schema.json)");
  line.add("csv", "FILE", "write a row per layer, step and query head");
  line.add("dump", "FILE|DIR",
           "write the recorded decisions and outputs: one run to a file, several to a folder");
  add_text_options(line);
  add_common_options(line);
  return line;
}

// The files that a replay writes. Contents go to temporary files, which may fail for lack of space; all get their names at the
// end.
class Outputs {
 public:
  explicit Outputs(const Request& request) {
    if (request.json) {
      json_file_.emplace(*request.json);
      json_file_->write(JsonReport::beginning(request.base, environment()));
      json_.emplace([this](std::string_view text) { json_file_->write(text); }, request.base);
    }
    if (request.csv) {
      csv_.emplace(*request.csv);
      csv_->write(csv_headings());
    }
  }
  void add(const Report& report) {
    if (json_) json_->add(report);
    if (csv_) csv_->write(csv_rows(report));
  }
  void prepare() {
    if (json_) {
      json_->finish();
      json_file_->prepare();
    }
    if (csv_) csv_->prepare();
  }
  void commit() {
    if (json_file_) json_file_->commit();
    if (csv_) csv_->commit();
  }

 private:
  std::optional<traces::OutputFile> json_file_, csv_;
  std::optional<JsonReport> json_;
};

}  // namespace

int replay_command(const Arguments& arguments) {
  CommandLine line = replay_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const Request request = parse_request(line);

  const std::vector<std::string> paths = line.positionals("TRACE", 1, SIZE_MAX);
  std::vector<traces::Trace> opened;
  OutputPaths outputs;
  for (const std::string& path : paths) {
    const traces::Trace& trace = opened.emplace_back(path, header_options(line));
    for (const std::string& input : trace.paths()) outputs.add_input(input);
  }
  const GivenSources sources = given_sources(request.runs);
  for (const auto& [path, source] : sources) outputs.add_input(path);
  std::vector<TraceReplay> traces;
  for (traces::Trace& trace : opened) traces.emplace_back(std::move(trace), line, request, sources);
  if (request.json) outputs.add("json", *request.json);
  if (request.csv) outputs.add("csv", *request.csv);
  std::optional<DumpTargets> targets;
  if (request.dump) targets.emplace(*request.dump, paths, request.runs, outputs);
  Outputs files(request);

  int code = kPass;
  std::vector<std::vector<Dump>> dumps(traces.size());
  for (size_t i = 0; i < traces.size(); ++i) {
    const std::string spool_folder = targets ? targets->spool_folder() : "";
    const Report report = replay_trace(traces[i], request, spool_folder, dumps[i]);
    if (targets) targets->make_folders();
    for (size_t r = 0; r < dumps[i].size(); ++r) dumps[i][r].prepare(targets->path(i, request.runs[r]));
    std::cout << (i > 0 ? "\n" : "") << text_report(report, request.base, request.style, request.columns)
              << std::flush;
    files.add(report);
    code = worse(code, replay_verdict(report, request.quiet));
  }
  files.prepare();
  flush_standard_output();
  for (std::vector<Dump>& trace_dumps : dumps) {
    for (Dump& dump : trace_dumps) dump.commit();
  }
  files.commit();
  return code;
}

}  // namespace kvbound::sim
