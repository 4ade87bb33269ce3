#include "recall_report.hpp"

#include <fmt/format.h>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/traces/messages.hpp>

#include <kvbound/sim/figures/csv.hpp>
#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/figures/plot.hpp>
#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>
#include "environment.hpp"

namespace kvbound::sim {
namespace {

// The mean over layers and query heads, per score and window, in the order of the layers' scores.
std::vector<RecallFigures> means(const RecallResult& result) {
  std::vector<RecallFigures> all(result.layers.front().scores.size());
  for (const LayerRecall& layer : result.layers) {
    for (size_t s = 0; s < all.size(); ++s) {
      for (const RecallFigures& head : layer.scores[s].heads) {
        all[s].first_step += head.first_step;
        all[s].first_step_recent += head.first_step_recent;
        all[s].mean_step += head.mean_step;
        all[s].mean_step_recent += head.mean_step_recent;
      }
    }
  }
  const auto count = static_cast<double>(result.layers.size()) *
                     static_cast<double>(result.layers.front().scores.front().heads.size());
  for (RecallFigures& mean : all) {
    mean = {mean.first_step / count, mean.first_step_recent / count, mean.mean_step / count,
            mean.mean_step_recent / count};
  }
  return all;
}

Json to_json(const RecallFigures& figures) {
  return {{"first_step", figures.first_step},
          {"first_step_recent", figures.first_step_recent},
          {"mean_step", figures.mean_step},
          {"mean_step_recent", figures.mean_step_recent}};
}

Json scored(const ScoreRecall& recall) { return {{"score", recall.score}, {"window", recall.window}}; }

Json to_json(const LayerRecall& layer) {
  Json scores = Json::array();
  for (const ScoreRecall& recall : layer.scores) {
    Json score = scored(recall);
    score["query_heads"] = Json::array();
    for (const RecallFigures& head : recall.heads) score["query_heads"].push_back(to_json(head));
    scores.push_back(score);
  }
  return {{"layer", layer.layer}, {"scores", scores}};
}

std::string recall_plot(const RecallResult& result, const std::vector<RecallFigures>& all,
                        const TextStyle& style) {
  std::vector<Bar> bars;
  for (size_t s = 0; s < all.size(); ++s) {
    const ScoreRecall& recall = result.layers.front().scores[s];
    bars.push_back({recall.score, std::to_string(recall.window), all[s].mean_step});
  }
  return bar_chart(fmt::format("recall@{} by window, all decode steps", result.options.k), bars, style);
}

std::string share(double value) { return fmt::format("{:.3f}", value); }

}  // namespace

std::string text_report(const RecallReport& report, const TextStyle& style) {
  const RecallResult& result = report.result;
  const traces::TraceInfo& info = result.trace;
  std::string text = fmt::format(
      "{}\n  model {}\n  {} of {} layers, {} query heads on {} KV heads, {} prompt tokens, {} decode steps, {}\n"
      "\nrecall@{}, mean over layers and query heads; old: the newest {} prompt positions are no candidates\n\n",
      one_line(info.path), traces::printable(info.model, traces::kMostQuoted), result.layers.size(),
      info.layers, info.shape.query_heads, info.shape.kv_heads, info.prompt_tokens, info.decode_tokens,
      name(info.storage), result.options.k, result.options.recent);
  const std::string all_steps = fmt::format("steps 1-{}", info.decode_tokens);
  std::vector<TableRow> rows{{"score", "window", "step 1", "step 1, old", all_steps, all_steps + ", old"}};
  const std::vector<RecallFigures> all = means(result);
  for (size_t s = 0; s < all.size(); ++s) {
    const ScoreRecall& recall = result.layers.front().scores[s];
    rows.push_back({recall.score, std::to_string(recall.window), share(all[s].first_step),
                    share(all[s].first_step_recent), share(all[s].mean_step),
                    share(all[s].mean_step_recent)});
  }
  text += table(rows, {.text = style, .alarming = {}});
  return style.plot ? text + recall_plot(result, all, style) : text;
}

std::string json_report(const RecallReport& report) {
  const RecallResult& result = report.result;
  Json document{{"schema", "kvbound-recall-1"}};
  document.update(fields_of(environment()));
  document["seed"] = nullptr;  // nothing here is drawn at random
  document["trace"] = trace_facts(result.trace, report.sha256);
  document["k"] = result.options.k;
  document["recent"] = result.options.recent;
  document["windows"] = result.options.windows;
  document["means"] = Json::array();
  const std::vector<RecallFigures> all = means(result);
  for (size_t s = 0; s < all.size(); ++s) {
    document["means"].push_back(scored(result.layers.front().scores[s]));
    document["means"].back().update(to_json(all[s]));
  }
  document["layers"] = Json::array();
  for (const LayerRecall& layer : result.layers) document["layers"].push_back(to_json(layer));
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string csv_report(const RecallReport& report) {
  const RecallResult& result = report.result;
  std::string csv =
      "trace,layer,head,score,window,k,recent,first_step,first_step_recent,mean_step,mean_step_recent\n";
  const std::string path = csv_field(result.trace.path);
  for (const LayerRecall& layer : result.layers) {
    for (size_t h = 0; h < layer.scores.front().heads.size(); ++h) {
      for (const ScoreRecall& recall : layer.scores) {
        const RecallFigures& head = recall.heads[h];
        csv += fmt::format("{},{},{},{},{},{},{},{},{},{},{}\n", path, layer.layer, h, recall.score,
                           recall.window, result.options.k, result.options.recent, shortest(head.first_step),
                           shortest(head.first_step_recent), shortest(head.mean_step),
                           shortest(head.mean_step_recent));
      }
    }
  }
  return csv;
}

}  // namespace kvbound::sim
