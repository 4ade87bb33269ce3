#include "inspect_report.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/plot.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/traces/layer_list.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

// "3", or "3, of the model 0,11,20".
std::string layers_of(const traces::TraceInfo& info) {
  if (info.model_layers.empty()) return std::to_string(info.layers);
  return fmt::format("{}, of the model {}", info.layers,
                     without_middle(traces::layer_list(info.model_layers)));
}

std::string explanation(const HeadProfiles& profiles) {
  const HeadProfileOptions& options = profiles.options;
  const traces::TraceInfo& info = profiles.trace;
  const int64_t entries = info.prompt_tokens + info.decode_tokens;
  return fmt::format(
      "heads of {} of {} layers: means over a layer's heads\n"
      "  attention of the last {} prompt queries and {} decode steps; sinks: the first {} positions\n"
      "  effective rank of the values of all {} entries, at most {}\n"
      "  bf16 ties of SnapKV's scores, window {}, not pooled and with pool {}; tie-break: share of the {} entries\n"
      "  that a budget of {} selects of {} candidates which only the tie-break distinguishes from evicted ones\n\n",
      profiles.layers.size(), info.layers, info.window_queries, info.decode_tokens, options.sinks, entries,
      std::min(entries, info.shape.head_dim), options.window, options.pool,
      options.selected(info.prompt_tokens), to_string(options.budget),
      options.candidates(info.prompt_tokens));
}

std::string heads_text(const HeadProfiles& profiles, const Part& part, const TextStyle& style,
                       const std::vector<std::string>& columns) {
  const Cube& layers = *part.find("layers");
  std::string text = "\n" + explanation(profiles) + cube_table(layers, style, columns);
  if (profiles.layers.size() > 1)
    text += "\nmeans over the heads of all these layers\n\n" + cube_table(*part.find("all"), style, columns);
  if (!style.plot) return text;
  return text +
         bar_chart("effective entries by layer", bars_of(layers, "", "layer", "effective_entries"), style);
}

}  // namespace

std::string trace_text(const traces::TraceInfo& info, const std::string& sha256) {
  return fmt::format(
      "{}\n  model              {}\n  source             {}\n  layers             {}\n"
      "  query heads        {}\n  KV heads           {}\n  head_dim           {}\n  model_dim          {}\n"
      "  prompt tokens      {}\n  decode tokens      {}\n  window queries     {}\n  scale              {}\n"
      "  storage            {}\n  attention output   {}\n  tokens             {}\n  sha256             {}\n",
      one_line(info.path), traces::printable(info.model, traces::kMostQuoted),
      traces::printable(info.source, traces::kMostQuoted), layers_of(info), info.shape.query_heads,
      info.shape.kv_heads, info.shape.head_dim, info.shape.model_dim, info.prompt_tokens, info.decode_tokens,
      info.window_queries, shortest(info.scale), name(info.storage),
      info.has_attention_output ? "recorded" : "not recorded", info.has_tokens ? "recorded" : "not recorded",
      sha256);
}

std::string text_report(const Inspection& inspection, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  std::string text;
  if (!inspection.verified.empty())
    text += "\nrecorded attention outputs, recomputed\n\n" + cube_table(*part.find("verified"), style);
  if (inspection.heads) text += heads_text(*inspection.heads, part, style, columns);
  return text;
}

}  // namespace kvbound::sim
