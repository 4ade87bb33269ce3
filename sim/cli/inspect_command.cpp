#include <algorithm>
#include <array>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/text_options.hpp>
#include <kvbound/sim/options/budget.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/inspect_report.hpp>
#include <kvbound/traces/output_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "commands.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kInspectDetails =
    R"(--verify reads every number and, where the trace has the model's own attention output, recomputes it from queries, keys
and values: exit 0 if all layers agree within the rounding of single precision, 1 if not, 5 if a layer has no recorded
attention output.

--heads computes, of every head in double precision, over all recorded queries:
  sink mass       mean attention on the first positions
  top position    and top mass: the position, of all, that attracts most attention on average, and how much
  entropy         mean of -sum A ln A, in nats; eff. entries: exp(entropy)
  eff. rank of V  exp(-sum p ln p), p = sigma / sum sigma, of the KV head's values (Roy and Vetterli 2007); stable rank: sum
      sigma^2 / max sigma^2
  ties            share of the prompt entries before the window whose SnapKV score, rounded to bf16, another entry of the KV
      head has as well; tie-break: share of the entries that the budget selects among them which only their position
      distinguishes from evicted ones of equal score

The table has a row per layer, by the model's own numbers, with means over its heads; --columns all has their extremes, too.
JSON and CSV have every head, and ties without rounding.
)";

const std::vector<Example> kInspectExamples{
    {"kvbound inspect traces/samples/pocket-gqa.safetensors --verify"},
    {"kvbound inspect traces/samples/smollm2-135m.safetensors --heads --layers 11-20"},
    {"kvbound inspect traces/samples/pocket-gqa.safetensors --heads --sinks 1 --budget 10% --csv heads.csv --json heads.json"},
};

// The options that only --heads uses.
constexpr std::array kHeadOptions{"sinks", "window", "pool", "budget", "layers", "csv", "columns"};

CommandLine inspect_command_line() {
  CommandLine line(
      "inspect TRACE [options]: what a trace holds, whether its recorded outputs can be reproduced, and what its "
      "heads are like",
      kInspectDetails, kInspectExamples);
  line.add_flag("verify", "read all numbers; recompute the recorded attention output");
  line.add_flag("heads", "measure every head: attention sinks, entropy, rank of the values, ties of scores");
  line.add("sinks", "S", "with --heads: number of first positions that count as sinks (default: 4)");
  line.add("window", "W",
           "with --heads: number of last prompt queries that score (default: 32, or all recorded if fewer)");
  line.add("pool", "P", "with --heads: width of the max-pool, odd (default: 7)");
  line.add(
      "budget", "B",
      "with --heads: entries kept per KV head, the window's included, such as 256 or 20% (default: 20%)");
  line.add("layers", "L[,L]", "with --heads: layers measured, such as 0,3-5 (default: all)");
  add_columns_option(line, inspect_columns());
  add_output_options(line, "layer and head, with --heads");
  add_text_options(line);
  add_common_options(line);
  return line;
}

HeadProfileOptions head_options(const CommandLine& line, const traces::TraceInfo& info) {
  for (const char* option : kHeadOptions) {
    if (line.has(option) && !line.has("heads")) throw UsageError(fmt::format("--{} needs --heads", option));
  }
  HeadProfileOptions options;
  options.sinks = line.integer("sinks", 1, INT64_MAX, options.sinks);
  options.window =
      line.integer("window", 1, info.window_queries, std::min(options.window, info.window_queries));
  options.pool = line.integer("pool", 1, INT64_MAX, options.pool);
  if (options.pool % 2 == 0) throw UsageError(fmt::format("--pool {}: expected an odd width", options.pool));
  if (const auto budget = line.text("budget")) options.budget = parse_budget(*budget);
  const int64_t entries = options.budget.entries(info.prompt_tokens);
  if (line.has("budget") && (entries < 1 || entries > info.prompt_tokens)) {
    throw UsageError(fmt::format("--budget {}: {} of the {} prompt entries of {}", to_string(options.budget),
                                 entries, info.prompt_tokens, info.path));
  }
  return options;
}

std::string hash_of(const traces::Trace& trace, bool quiet) {
  Progress progress("hashing", !quiet);
  return trace.sha256([&](int64_t done, int64_t whole) { progress.update(done, whole); });
}

// Reads every layer and compares the attention outputs that were recorded.
std::vector<VerifiedLayer> verify(const traces::Trace& trace, bool quiet) {
  std::vector<VerifiedLayer> layers;
  Progress progress("verifying", !quiet);
  for (int64_t l = 0; l < trace.info().layers; ++l) try {
      const traces::Layer layer = trace.read_layer(l, {.attention_output = true});
      progress.update(l + 1, trace.info().layers);
      if (layer.attention_output)
        layers.push_back({trace.info().layer_number(l), verify_attention_output(layer)});
    } catch (const NonFinite& error) {
      throw TraceError(trace.info().path, -1, fmt::format("layers.{}", l),
                       fmt::format("its numbers are too large for double precision: {}", error.what()));
    }
  return layers;
}

// Exit code, and on standard error why it is inconclusive.
int verdict(const Inspection& inspection, bool quiet) {
  if (!std::ranges::all_of(inspection.verified,
                           [](const VerifiedLayer& one) { return one.agreement.agrees(); }))
    return kMismatch;
  const auto compared = std::ssize(inspection.verified);
  if (compared == inspection.trace.layers) return kPass;
  if (!quiet) {
    std::cerr << fmt::format(
        "kvbound: all numbers are finite, but {} of {} layers have an attention output to compare with\n",
        compared, inspection.trace.layers);
  }
  return kInconclusive;
}

HeadProfiles profile_heads(const traces::Trace& trace, const std::vector<int64_t>& layers,
                           const HeadProfileOptions& options, bool quiet) {
  Progress progress("measuring heads", !quiet);
  return head_profiles(trace, layers, options,
                       [&](int64_t done, int64_t whole) { progress.update(done, whole); });
}

}  // namespace

int inspect_command(const Arguments& arguments) {
  CommandLine line = inspect_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const bool quiet = line.has("quiet");
  const traces::Trace trace(line.positionals("TRACE", 1, 1).front(), header_options(line));
  const HeadProfileOptions options = head_options(line, trace.info());
  const std::vector<int64_t> layers = chosen_layers(line, trace.info());
  const std::vector<std::string> columns = chosen_columns(line, inspect_columns());
  OutputPaths taken;
  for (const std::string& input : trace.paths()) taken.add_input(input);
  Outputs outputs(line, taken, "inspect");
  outputs.open();

  Inspection inspection{trace.info(), hash_of(trace, quiet), {}, {}};
  std::cout << trace_text(trace.info(), inspection.sha256);
  if (line.has("verify")) inspection.verified = verify(trace, quiet);
  if (line.has("heads")) inspection.heads = profile_heads(trace, layers, options, quiet);
  const Part part = inspect_part(inspection);
  std::cout << text_report(inspection, part, text_style(line), columns);
  outputs.write(part, provenance());
  return line.has("verify") ? verdict(inspection, quiet) : kPass;
}

}  // namespace kvbound::sim
