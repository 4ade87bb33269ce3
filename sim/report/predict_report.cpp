#include "predict_report.hpp"

#include <fmt/format.h>

#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/plot.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {

std::string text_report(const PredictReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  const PredictResult& result = report.result;
  const PredictOptions& options = result.options;
  const traces::TraceInfo& info = result.trace;
  const Cube &predictors = *part.find("predictors"), &shares = *part.find("shares"),
             &variances = *part.find("variances");
  std::string text = fmt::format(
      "{}\n  model {}\n  {} of {} layers, {} query heads on {} KV heads, {} prompt tokens, {} of {} decode steps, {}\n",
      one_line(info.path), traces::printable(info.model, traces::kMostQuoted), result.layers.size(),
      info.layers, info.shape.query_heads, info.shape.kv_heads, info.prompt_tokens, options.steps,
      info.decode_tokens, name(info.storage));
  text += fmt::format(
      "\nThe next query's scores, predicted from all before, over layers, query heads and steps 1-{}; ema {:g}, window {}\n\n{}",
      options.steps, options.ema, options.window, cube_table(predictors, style, columns));
  text +=
      fmt::format("\nShare of the prompt entries that {} evicts at {} which are in the prompt's top {}\n\n{}",
                  canonical(options.policy), to_string(options.budget), to_string(options.top),
                  cube_table(*part.find("reentering"), style));
  text += fmt::format(
      "\nVariance of an entry's attention scores over all queries and over the last {}, over layers, query heads and steps\n\n{}",
      options.window,
      variances.says_something() ? cube_table(variances, style)
                                 : "no entry is seen by more queries than the window has\n");
  text += "\nAttention on the entries that a step's query pays most, over layers, query heads and steps\n\n" +
          cube_table(shares, style);
  if (!style.plot) return text;
  return text +
         bar_chart("Median relative error by predictor",
                   bars_of(predictors, "scores", "predictor", "relative_error_median"), style) +
         bar_chart("Attention on the entries that are paid most", bars_of(shares, "", "share", "mass"),
                   style);
}

}  // namespace kvbound::sim
