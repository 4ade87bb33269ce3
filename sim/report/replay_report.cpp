#include "replay_report.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/messages.hpp>

#include "heads_text.hpp"
#include "replay_plot.hpp"

namespace kvbound::sim {
namespace {

std::string table_of(const Part& part, const char* cube, const TextStyle& style,
                     const std::vector<std::string>& columns = {}) {
  const Cube* const found = part.find(cube);
  return found && found->rows() > 0 ? cube_table(*found, style, columns) + "\n" : "";
}

// What the policies' names stand for, each once.
std::string policies_text(const ReplayResult& result) {
  std::string text;
  std::vector<std::string> named;
  for (const RunResult& run : result.runs) {
    const std::string& label = run.run.policy.label;
    if (std::ranges::find(named, label) != named.end()) continue;
    named.push_back(label);
    text += fmt::format("  {} = {}\n", label, canonical(run.run.policy.policy));
  }
  return text;
}

}  // namespace

ReplayDetail replay_detail(const Outputs& outputs, const TextStyle& style) {
  if (outputs.has_csv()) return ReplayDetail::rows;
  return outputs.has_json() || style.plot ? ReplayDetail::document : ReplayDetail::table;
}

std::string text_report(const ReplayReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  const ReplayResult& result = report.result;
  const traces::TraceInfo& info = result.trace;
  std::string text = fmt::format(
      "{}\n  model {}\n  {} of {} layers, {}, head_dim {}, model_dim {}, {} prompt tokens, "
      "{} of {} decode steps, {}\n\n",
      one_line(info.path), traces::printable(info.model, traces::kMostQuoted), result.scope.layers.size(),
      info.layers, heads_text(info.shape.query_heads, info.recorded_kv_heads, info.heads),
      info.shape.head_dim, info.shape.model_dim, info.prompt_tokens, result.scope.steps, info.decode_tokens,
      name(info.storage));
  text += table_of(part, "runs", style, columns);
  text += table_of(part, "agreement", style);
  if (result.times.size() > 1) text += table_of(part, "times", style);
  text += policies_text(result);
  if (style.plot) text += replay_plots(part, style);
  return text;
}

}  // namespace kvbound::sim
