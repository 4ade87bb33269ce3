#include "recall_report.hpp"

#include <fmt/format.h>

#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/plot.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {

std::string text_report(const RecallReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  const RecallResult& result = report.result;
  const traces::TraceInfo& info = result.trace;
  const Cube& scores = *part.find("scores");
  std::string text = fmt::format(
      "{}\n  model {}\n  {} of {} layers, {} query heads on {} KV heads, {} prompt tokens, {} decode steps, {}\n"
      "\nrecall@{}, mean over layers and query heads; old: the newest {} prompt positions are no candidates\n\n{}",
      one_line(info.path), traces::printable(info.model, traces::kMostQuoted), result.layers.size(),
      info.layers, info.shape.query_heads, info.shape.kv_heads, info.prompt_tokens, info.decode_tokens,
      name(info.storage), result.options.k, result.options.recent, cube_table(scores, style, columns));
  if (!style.plot) return text;
  return text + bar_chart(fmt::format("recall@{} by window, all decode steps", result.options.k),
                          bars_of(scores, "score", "window", "mean_step"), style);
}

}  // namespace kvbound::sim
