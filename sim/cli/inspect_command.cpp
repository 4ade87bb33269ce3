#include <algorithm>
#include <iostream>

#include <fmt/format.h>
#include <kvbound/sim/measure/verify.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/json.hpp>
#include <kvbound/sim/report/report.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/output_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "commands.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kDetails =
    "--verify reads every number and, where the trace has the model's own attention output, recomputes it\n"
    "from queries, keys and values: exit 0 if all layers agree within the rounding of single precision, 1 if\n"
    "not, 5 if a layer has no recorded attention output.\n"
    "\nExamples:\n"
    "  kvbound inspect traces/samples/pocket-gqa.safetensors --verify\n"
    "  kvbound inspect big.safetensors.index.json --json big.json\n";

std::string describe(const traces::TraceInfo& info) {
  return fmt::format(
      "{}\n  model              {}\n  source             {}\n  layers             {}\n"
      "  query heads        {}\n  KV heads           {}\n  head_dim           {}\n  model_dim          {}\n"
      "  prompt tokens      {}\n  decode tokens      {}\n  window queries     {}\n  scale              {}\n"
      "  storage            {}\n  attention output   {}\n  tokens             {}\n",
      one_line(info.path), traces::printable(info.model, 200), traces::printable(info.source, 200),
      info.layers, info.shape.query_heads, info.shape.kv_heads, info.shape.head_dim, info.shape.model_dim,
      info.prompt_tokens, info.decode_tokens, info.window_queries, shortest(info.scale), name(info.storage),
      info.has_attention_output ? "recorded" : "not recorded", info.has_tokens ? "recorded" : "not recorded");
}

Json inspection_json(const traces::TraceInfo& info, const std::string& sha256) {
  Json document{{"schema", "kvbound-inspect-1"}};
  document.update(environment());
  document["trace"] = trace_json(info, sha256);
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
// sets `code` if one differs.
Json verify(const traces::Trace& trace, bool progress_wanted, int& code) {
  Json layers = Json::array();
  Progress progress("verifying", progress_wanted);
  for (int64_t l = 0; l < trace.info().layers; ++l) try {
      const traces::Layer layer = trace.read_layer(l, true);
      progress.update(l + 1, trace.info().layers);
      if (!layer.attention_output) continue;
      const OutputAgreement agreement = verify_attention_output(layer);
      if (!agreement.agrees()) code = kMismatch;
      layers.push_back(agreement_json(l, agreement));
      std::cout << fmt::format(
          "  layer {:<12} {}: largest error {:.3g}, {:.3g} of its bound (query head {}, row {}, column {})\n",
          l, agreement.agrees() ? "agrees" : "DIFFERS", agreement.worst_error, agreement.worst_share,
          agreement.query_head, agreement.row, agreement.column);
    } catch (const NonFinite& error) {
      throw TraceError(trace.info().path, -1, fmt::format("layers.{}", l),
                       fmt::format("its numbers are too large for double precision: {}", error.what()));
    }
  return layers;
}

}  // namespace

int inspect_command(const Arguments& arguments) {
  CommandLine line(
      "inspect TRACE [options]: what a trace holds, and whether its recorded outputs can be reproduced",
      kDetails);
  line.add_flag("verify", "read all numbers; recompute the recorded attention output");
  line.add("json", "FILE", "also write the results as JSON (schema: sim/schemas/inspect.schema.json)");
  add_common_options(line);
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const bool quiet = line.has("quiet");
  const std::string path = line.positionals("TRACE", 1, 1).front();
  const traces::Trace trace(path, header_options(line));
  std::optional<traces::OutputFile> file;
  if (const auto json = line.text("json")) {
    OutputPaths outputs;
    for (const std::string& input : trace.paths()) outputs.add_input(input);
    outputs.add("json", *json);
    file.emplace(*json);
  }

  std::string sha256;
  {
    Progress progress("hashing", !quiet);
    sha256 = trace.sha256([&](int64_t done, int64_t whole) { progress.update(done, whole); });
  }
  std::cout << describe(trace.info()) << "  sha256             " << sha256 << "\n";
  Json document = inspection_json(trace.info(), sha256);
  int code = kPass;
  if (line.has("verify")) {
    document["verified_layers"] = verify(trace, !quiet, code);
    const auto compared = static_cast<int64_t>(document["verified_layers"].size());
    if (code == kPass && compared < trace.info().layers) {
      code = kInconclusive;
      if (!quiet) {
        std::cerr << fmt::format(
            "kvbound: all numbers are finite, but {} of {} layers have an attention output to compare with\n",
            compared, trace.info().layers);
      }
    }
  } else {
    document["verified_layers"] = nullptr;
  }
  if (file) {
    flush_standard_output();
    file->write(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    file->commit();
  }
  return code;
}

}  // namespace kvbound::sim
