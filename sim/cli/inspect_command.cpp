#include <algorithm>
#include <array>
#include <iostream>
#include <optional>

#include <fmt/format.h>
#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/measure/verify.hpp>
#include <kvbound/sim/options/budget.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/head_report.hpp>
#include <kvbound/sim/study/head_profile.hpp>
#include <kvbound/traces/layer_list.hpp>
#include <kvbound/traces/messages.hpp>
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

The table has a row per layer, by the model's own numbers; JSON and CSV have every head, and ties without rounding.
)";

const std::vector<Example> kInspectExamples{
    {"kvbound inspect traces/samples/pocket-gqa.safetensors --verify"},
    {"kvbound inspect traces/samples/smollm2-135m.safetensors --heads --layers 11-20"},
    {"kvbound inspect traces/samples/pocket-gqa.safetensors --heads --sinks 1 --budget 10% --csv heads.csv --json heads.json"},
};

// The options that only --heads uses.
constexpr std::array kHeadOptions{"sinks", "window", "pool", "budget", "layers", "csv"};

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
  line.add("json", "FILE", "also write the results as JSON (schema: sim/schemas/inspect.schema.json)");
  line.add("csv", "FILE", "with --heads: write a row per layer and query head");
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

// "3", or "3, of the model 0,11,20".
std::string layers_of(const traces::TraceInfo& info) {
  if (info.model_layers.empty()) return std::to_string(info.layers);
  return fmt::format("{}, of the model {}", info.layers,
                     without_middle(traces::layer_list(info.model_layers)));
}

std::string describe(const traces::TraceInfo& info) {
  return fmt::format(
      "{}\n  model              {}\n  source             {}\n  layers             {}\n"
      "  query heads        {}\n  KV heads           {}\n  head_dim           {}\n  model_dim          {}\n"
      "  prompt tokens      {}\n  decode tokens      {}\n  window queries     {}\n  scale              {}\n"
      "  storage            {}\n  attention output   {}\n  tokens             {}\n",
      one_line(info.path), traces::printable(info.model, traces::kMostQuoted),
      traces::printable(info.source, traces::kMostQuoted), layers_of(info), info.shape.query_heads,
      info.shape.kv_heads, info.shape.head_dim, info.shape.model_dim, info.prompt_tokens, info.decode_tokens,
      info.window_queries, shortest(info.scale), name(info.storage),
      info.has_attention_output ? "recorded" : "not recorded", info.has_tokens ? "recorded" : "not recorded");
}

Json inspection_json(const traces::TraceInfo& info, const std::string& sha256) {
  Json document{{"schema", "kvbound-inspect-1"}};
  document.update(fields_of(environment()));
  document["trace"] = trace_facts(info, sha256);
  document["trace"]["model_layers"] = traces::layer_numbers(info);
  document["trace"]["attention_output"] = info.has_attention_output;
  document["trace"]["tokens"] = info.has_tokens;
  return document;
}

Json agreement_json(int64_t layer, const OutputAgreement& agreement) {
  return {{"layer", layer},
          {"agrees", agreement.agrees()},
          {"worst_error", agreement.worst_error},
          {"bound", agreement.worst_bound},
          {"query_head", agreement.query_head},
          {"row", agreement.row},
          {"column", agreement.column}};
}

// Reads every layer and prints, per layer, how the recorded attention output compares. Returns the compared layers;
// sets `code` if one differs, or if one cannot be compared.
Json verify(const traces::Trace& trace, bool quiet, int& code) {
  Json layers = Json::array();
  Progress progress("verifying", !quiet);
  for (int64_t l = 0; l < trace.info().layers; ++l) try {
      const traces::Layer layer = trace.read_layer(l, true);
      progress.update(l + 1, trace.info().layers);
      if (!layer.attention_output) continue;
      const OutputAgreement agreement = verify_attention_output(layer);
      if (!agreement.agrees()) code = kMismatch;
      const int64_t number = trace.info().layer_number(l);
      layers.push_back(agreement_json(number, agreement));
      std::cout << fmt::format(
          "  layer {:<12} {}: largest error {:.3g}, {:.3g} of its bound (query head {}, row {}, column {})\n",
          number, agreement.agrees() ? "agrees" : "DIFFERS", agreement.worst_error, agreement.worst_share,
          agreement.query_head, agreement.row, agreement.column);
    } catch (const NonFinite& error) {
      throw TraceError(trace.info().path, -1, fmt::format("layers.{}", l),
                       fmt::format("its numbers are too large for double precision: {}", error.what()));
    }
  const auto compared = std::ssize(layers);
  if (code == kPass && compared < trace.info().layers) {
    code = kInconclusive;
    if (!quiet) {
      std::cerr << fmt::format(
          "kvbound: all numbers are finite, but {} of {} layers have an attention output to compare with\n",
          compared, trace.info().layers);
    }
  }
  return layers;
}

// Prints the table of heads, and returns their profiles.
HeadProfiles profile_heads(const traces::Trace& trace, const std::vector<int64_t>& layers,
                           const HeadProfileOptions& options, bool quiet) {
  Progress progress("measuring heads", !quiet);
  HeadProfiles profiles = head_profiles(trace, layers, options,
                                        [&](int64_t done, int64_t whole) { progress.update(done, whole); });
  std::cout << "\n" << text_report(profiles, terminal_style());
  return profiles;
}

// The files that are written, if they are asked for.
struct InspectFiles {
  std::optional<traces::OutputFile> json, csv;

  InspectFiles(const CommandLine& line, const traces::Trace& trace) {
    OutputPaths outputs;
    for (const std::string& input : trace.paths()) outputs.add_input(input);
    const auto json_path = line.text("json"), csv_path = line.text("csv");
    if (json_path) outputs.add("json", *json_path);
    if (csv_path) outputs.add("csv", *csv_path);
    if (json_path) json.emplace(*json_path);
    if (csv_path) csv.emplace(*csv_path);
  }

  void write(const Json& document, const std::optional<HeadProfiles>& profiles) {
    if (json) {
      json->write(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
      json->prepare();
    }
    if (csv) {
      csv->write(csv_report(*profiles));
      csv->prepare();
    }
    flush_standard_output();
    if (json) json->commit();
    if (csv) csv->commit();
  }
};

}  // namespace

int inspect_command(const Arguments& arguments) {
  CommandLine line = inspect_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const bool quiet = line.has("quiet");
  const traces::Trace trace(line.positionals("TRACE", 1, 1).front(), header_options(line));
  const HeadProfileOptions options = head_options(line, trace.info());
  const std::vector<int64_t> layers = chosen_layers(line, trace.info());
  InspectFiles files(line, trace);

  std::string sha256;
  {
    Progress progress("hashing", !quiet);
    sha256 = trace.sha256([&](int64_t done, int64_t whole) { progress.update(done, whole); });
  }
  std::cout << describe(trace.info()) << "  sha256             " << sha256 << "\n";
  Json document = inspection_json(trace.info(), sha256);
  int code = kPass;
  document["verified_layers"] = line.has("verify") ? verify(trace, quiet, code) : Json();
  std::optional<HeadProfiles> profiles;
  if (line.has("heads")) profiles = profile_heads(trace, layers, options, quiet);
  document["heads"] = profiles ? heads_json(*profiles) : Json();
  files.write(document, profiles);
  return code;
}

}  // namespace kvbound::sim
