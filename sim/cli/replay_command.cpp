#include <algorithm>
#include <iostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/backend.hpp>
#include <kvbound/sim/replay/dump.hpp>
#include <kvbound/sim/replay/dump_targets.hpp>
#include <kvbound/sim/replay/replay.hpp>
#include <kvbound/sim/replay/summary.hpp>
#include <kvbound/sim/report/agreement_report.hpp>
#include <kvbound/sim/report/report.hpp>
#include <kvbound/sim/report/table.hpp>
#include <kvbound/traces/output_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "commands.hpp"
#include "progress.hpp"
#include "run_options.hpp"

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
  std::vector<std::string> columns = column_names();
  int64_t recall_of = 40;
  bool merge_bounds = false;
  bool device_times = false;
  bool quiet = false;
};

std::vector<std::string> parse_columns(const CommandLine& line) {
  const std::vector<std::string> known = column_names();
  return parse_list<std::string>(line, "columns", [&](const std::string& name) {
    if (std::ranges::find(known, name) == known.end()) {
      throw UsageError(
          fmt::format("--columns: no column '{}'; known columns: {}", name, fmt::join(known, ", ")));
    }
    return name;
  });
}

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
  if (line.has("columns")) request.columns = parse_columns(line);
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
    throw UsageError(fmt::format("--steps: {} has no decode steps", info.path));
  }
  return {chosen_layers(line, info.layers),
          line.has("steps") ? line.integer("steps", 1, info.decode_tokens, 0) : info.decode_tokens,
          std::min(request.recall_of, info.prompt_tokens), request.merge_bounds, request.device_times};
}

Report replay_trace(const traces::Trace& trace, const Request& request, const Scope& scope,
                    const std::string& spool_folder, std::vector<Dump>& dumps) {
  Report report;
  if (request.json || request.dump) {
    Progress progress("hashing", !request.quiet);
    report.sha256 = trace.sha256([&](int64_t done, int64_t whole) { progress.update(done, whole); });
  }
  if (request.dump) {
    for (const Run& run : request.runs) dumps.emplace_back(run, trace.info(), report.sha256, spool_folder);
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
  report.result = replay(trace, request.runs, scope, observer,
                         [&](int64_t done, int64_t whole) { progress.update(done, whole); });
  return report;
}

// Explains on standard error where a run differs from the reference, or that its agreement is inconclusive.
ExitCode agreement_code(const std::string& trace, const RunResult& run) {
  if (!run.agreement) return kPass;
  const auto tell = [&](const std::string& what) {
    std::cerr << fmt::format("kvbound: {}: {} at {} on {}: {}\n", one_line(trace), run.run.policy.label,
                             to_string(run.run.budget), run.run.backend, what);
  };
  const std::vector<TensorSummary> all = summaries(*run.agreement);
  switch (verdict(all)) {
    case Verdict::agrees:
      return kPass;
    case Verdict::differs: {
      const auto first =
          std::ranges::find_if(all, [](const TensorSummary& summary) { return !summary.total.agrees(); });
      tell(text_of(*first->worst));
      return kMismatch;
    }
    case Verdict::no_evidence:
      tell("inconclusive: no bound is small enough to show that it agrees with the reference" +
           (text_of_unjudged(all).empty() ? "" : ": " + text_of_unjudged(all)));
      return kInconclusive;
  }
  return kInternal;  // not reached
}

// The more severe of two exit codes: mismatch, then inconclusive, then pass.
int worse(int one, int other) {
  if (one == kMismatch || other == kMismatch) return kMismatch;
  return one == kPass ? other : one;
}

// The most severe outcome of all runs; each is explained on standard error.
int exit_code(const std::vector<Report>& reports, bool quiet) {
  int code = kPass;
  for (const Report& report : reports) {
    if (report.result.scope.steps == 0) {
      if (!quiet) {
        std::cerr << "kvbound: " << one_line(report.result.trace.path)
                  << ": no decode step, so nothing was measured\n";
      }
      code = code == kPass ? kInconclusive : code;
    }
    for (const RunResult& run : report.result.runs) {
      code = worse(code, agreement_code(report.result.trace.path, run));
      const Summary summary = summarise(run, report.result.scope);
      const auto tell = [&](const char* what, int64_t violations, const std::optional<Place>& place) {
        if (violations == 0) return;
        const std::string step = place->step < 0 ? "the prompt's end" : fmt::format("step {}", place->step);
        std::cerr << fmt::format("kvbound: {}: {} at {}: {} {} times, first at layer {}, {}, query head {}\n",
                                 one_line(report.result.trace.path), run.run.policy.label,
                                 to_string(run.run.budget), what, violations, place->layer, step,
                                 place->query_head);
        code = kMismatch;
      };
      tell("the perturbation exceeds its bound", summary.violations, summary.first_violation);
      if (summary.merges) {
        tell("a lossless merge changes the output by more than rounding can explain",
             summary.merges->violations, summary.merges->first_violation);
      }
      if (summary.later) {
        tell("what a merge did to later queries exceeds its bound", summary.later->violations,
             summary.later->first_violation);
      }
    }
  }
  return code;
}

CommandLine replay_command_line() {
  CommandLine line("replay TRACE... --policy P[,P] --budget B[,B] [options]: decode steps through policies",
                   replay_details());
  const std::string columns = fmt::format("columns of the table besides policy and budget (default: all): {}",
                                          fmt::join(column_names(), ", "));
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
  line.add("columns", "C[,C]", columns.c_str());
  line.add("json", "FILE", "write all figures as JSON (schema: sim/schemas/replay.schema.json)");
  line.add("csv", "FILE", "write a row per layer, step and query head");
  line.add("dump", "FILE|DIR",
           "write the recorded decisions and outputs: one run to a file, several to a folder");
  add_common_options(line);
  return line;
}

// Writes the contents of all files first, which may fail for lack of space (the dumps' are written already), and gives
// the files their names afterwards.
void write_outputs(const Request& request, const std::vector<Report>& reports,
                   std::optional<DumpTargets>& targets, std::vector<std::vector<Dump>>& dumps,
                   std::optional<traces::OutputFile>& json, std::optional<traces::OutputFile>& csv) {
  if (json) {
    json->write(json_report(reports, request.base));
    json->prepare();
  }
  if (csv) {
    csv->write(csv_report(reports));
    csv->prepare();
  }
  flush_standard_output();
  if (targets) targets->keep();
  for (std::vector<Dump>& trace_dumps : dumps) {
    for (Dump& dump : trace_dumps) dump.commit();
  }
  if (json) json->commit();
  if (csv) csv->commit();
}

}  // namespace

int replay_command(const Arguments& arguments) {
  CommandLine line = replay_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const Request request = parse_request(line);

  const std::vector<std::string> paths = line.positionals("TRACE", 1, SIZE_MAX);
  std::vector<traces::Trace> traces;
  std::vector<Scope> scopes;
  OutputPaths outputs;
  for (const std::string& path : paths) {
    const traces::Trace& trace = traces.emplace_back(path, header_options(line));
    for (const std::string& input : trace.paths()) outputs.add_input(input);
  }
  for (const traces::Trace& trace : traces) {
    require_valid(request.runs, trace.info());
    scopes.push_back(scope_of(line, request, trace.info()));
  }
  if (request.json) outputs.add("json", *request.json);
  if (request.csv) outputs.add("csv", *request.csv);
  std::optional<DumpTargets> targets;
  if (request.dump) targets.emplace(*request.dump, paths, request.runs, outputs);
  std::optional<traces::OutputFile> json, csv;
  if (request.json) json.emplace(*request.json);
  if (request.csv) csv.emplace(*request.csv);

  std::vector<Report> reports;
  std::vector<std::vector<Dump>> dumps(traces.size());
  for (size_t i = 0; i < traces.size(); ++i) {
    const std::string spool_folder = targets ? targets->spool_folder() : "";
    reports.push_back(replay_trace(traces[i], request, scopes[i], spool_folder, dumps[i]));
    if (targets) targets->make_folders();
    for (size_t r = 0; r < dumps[i].size(); ++r) dumps[i][r].prepare(targets->path(i, request.runs[r]));
    std::cout << (i > 0 ? "\n" : "")
              << text_report(reports.back(), request.base, colour_wanted(), request.columns) << std::flush;
  }
  write_outputs(request, reports, targets, dumps, json, csv);
  return exit_code(reports, request.quiet);
}

}  // namespace kvbound::sim
