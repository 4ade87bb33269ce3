#include "predict_report.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <kvbound/sim/bench/bench.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/messages.hpp>

#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/figures/plot.hpp>
#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>
#include "environment.hpp"

namespace kvbound::sim {
namespace {

// Mean and median of ratios. Infinite and NaN ratios are excluded from the mean and are the largest for the median.
struct Figures {
  std::optional<double> mean, median;
  int64_t undefined = 0;
};

Figures figures(const std::vector<double>& ratios) {
  Figures result;
  double sum = 0;
  for (const double ratio : ratios) {
    if (std::isfinite(ratio)) {
      sum += ratio;
    } else {
      ++result.undefined;
    }
  }
  const auto defined = std::ssize(ratios) - result.undefined;
  if (defined > 0) result.mean = sum / static_cast<double>(defined);
  if (const double median = spread(ratios).median; std::isfinite(median)) result.median = median;
  return result;
}

// One row of a matrix member, concatenated over all layers and query heads.
std::vector<double> all_of(const PredictResult& result, Matrix HeadPrediction::*matrix, size_t row) {
  std::vector<double> numbers;
  for (const LayerPrediction& layer : result.layers) {
    for (const HeadPrediction& head : layer.heads) {
      const VectorView part = (head.*matrix).row(row);
      numbers.insert(numbers.end(), part.begin(), part.end());
    }
  }
  return numbers;
}

std::vector<double> row_of(const Matrix& matrix, size_t row) {
  const VectorView numbers = matrix.row(row);
  return {numbers.begin(), numbers.end()};
}

// Requires at least one number.
double mean(const std::vector<double>& numbers) {
  double sum = 0;
  for (const double number : numbers) sum += number;
  return sum / static_cast<double>(numbers.size());
}

// Means over all layers and query heads.
struct Reentering {
  double ever = 0, at_a_step = 0;
};
Reentering reentering(const PredictResult& result) {
  std::vector<double> ever, steps;
  for (const LayerPrediction& layer : result.layers) {
    for (const HeadPrediction& head : layer.heads) {
      ever.push_back(head.reentered_ever);
      steps.push_back(mean(head.reentered));
    }
  }
  return {mean(ever), mean(steps)};
}

Json to_json(const Figures& figures) {
  return {{"mean", json_number(figures.mean)},
          {"median", json_number(figures.median)},
          {"undefined", figures.undefined}};
}

// relative, entry: called with a predictor's index; return all its errors.
template <class Relative, class Entry>
Json predictions(const Relative& relative, const Entry& entry) {
  Json list = Json::array();
  for (size_t p = 0; p < predictors().size(); ++p) {
    list.push_back({{"scores", name(predictors()[p].scores)},
                    {"predictor", name(predictors()[p].by)},
                    {"relative_error", to_json(figures(relative(p)))},
                    {"entry_error", to_json(figures(entry(p)))}});
  }
  return list;
}

// attention: called with a share's index; returns the attention masses at all steps.
template <class Attention>
Json masses(const PredictOptions& options, const Attention& attention) {
  Json list = Json::array();
  for (size_t s = 0; s < options.shares.size(); ++s) {
    const std::vector<double> numbers = attention(s);
    const Spread spread = kvbound::sim::spread(numbers);
    list.push_back({{"share", to_string(options.shares[s])},
                    {"mean", mean(numbers)},
                    {"median", spread.median},
                    {"least", spread.least}});
  }
  return list;
}

Json to_json(const HeadPrediction& head, const PredictOptions& options) {
  return {{"predictions", predictions([&](size_t p) { return row_of(head.relative_errors, p); },
                                      [&](size_t p) { return row_of(head.entry_errors, p); })},
          {"reentering",
           {{"evicted", head.evicted}, {"ever", head.reentered_ever}, {"at_a_step", mean(head.reentered)}}},
          {"mass", masses(options, [&](size_t s) { return row_of(head.mass, s); })}};
}

Json to_json(const LayerPrediction& layer, const PredictOptions& options) {
  Json heads = Json::array();
  for (const HeadPrediction& head : layer.heads) heads.push_back(to_json(head, options));
  return {{"layer", layer.layer}, {"budget", layer.budget}, {"query_heads", heads}};
}

std::string error_table(const PredictResult& result, const TextStyle& style) {
  std::vector<TableRow> rows{
      {"scores", "predicted by", "relative error", "median", "entry error", "median", "undefined"}};
  for (size_t p = 0; p < predictors().size(); ++p) {
    const Figures relative = figures(all_of(result, &HeadPrediction::relative_errors, p)),
                  entry = figures(all_of(result, &HeadPrediction::entry_errors, p));
    rows.push_back({std::string(name(predictors()[p].scores)), std::string(name(predictors()[p].by)),
                    cell(relative.mean), cell(relative.median), cell(entry.mean), cell(entry.median),
                    std::to_string(relative.undefined + entry.undefined)});
  }
  return table(rows, {.left_columns = 2, .text = style, .alarming = {}});
}

std::string mass_table(const PredictResult& result, const TextStyle& style) {
  std::vector<TableRow> rows{{"entries", "attention", "median", "least"}};
  for (size_t s = 0; s < result.options.shares.size(); ++s) {
    const std::vector<double> numbers = all_of(result, &HeadPrediction::mass, s);
    const Spread spread = kvbound::sim::spread(numbers);
    rows.push_back({to_string(result.options.shares[s]), fmt::format("{:.4f}", mean(numbers)),
                    fmt::format("{:.4f}", spread.median), fmt::format("{:.4f}", spread.least)});
  }
  return table(rows, {.text = style, .alarming = {}});
}

std::string predict_plots(const PredictResult& result, const TextStyle& style) {
  std::vector<Bar> errors, masses;
  for (size_t p = 0; p < predictors().size(); ++p) {
    const Figures relative = figures(all_of(result, &HeadPrediction::relative_errors, p));
    errors.push_back(
        {std::string(name(predictors()[p].scores)), std::string(name(predictors()[p].by)), relative.median});
  }
  for (size_t s = 0; s < result.options.shares.size(); ++s)
    masses.push_back(
        {"attention", to_string(result.options.shares[s]), mean(all_of(result, &HeadPrediction::mass, s))});
  return bar_chart("Median relative error by predictor", errors, style) +
         bar_chart("Attention on the entries that are paid most", masses, style);
}

}  // namespace

std::string text_report(const PredictReport& report, const TextStyle& style) {
  const PredictResult& result = report.result;
  const PredictOptions& options = result.options;
  const traces::TraceInfo& info = result.trace;
  std::string text = fmt::format(
      "{}\n  model {}\n  {} of {} layers, {} query heads on {} KV heads, {} prompt tokens, {} of {} decode steps, {}\n",
      one_line(info.path), traces::printable(info.model, traces::kMostQuoted), result.layers.size(),
      info.layers, info.shape.query_heads, info.shape.kv_heads, info.prompt_tokens, options.steps,
      info.decode_tokens, name(info.storage));
  text += fmt::format(
      "\nThe next query's scores, predicted from all before, over layers, query heads and steps 1-{}; ema {:g}, window {}\n\n{}",
      options.steps, options.ema, options.window, error_table(result, style));
  const Reentering back = reentering(result);
  text +=
      fmt::format("\nShare of the prompt entries that {} evicts at {} which are in the prompt's top {}\n\n{}",
                  canonical(options.policy), to_string(options.budget), to_string(options.top),
                  table({{"at some step", "at a step"},
                         {fmt::format("{:.4f}", back.ever), fmt::format("{:.4f}", back.at_a_step)}},
                        {.left_columns = 0, .text = style, .alarming = {}}));
  text += "\nAttention on the entries that a step's query pays most, over layers, query heads and steps\n\n";
  text += mass_table(result, style);
  return style.plot ? text + predict_plots(result, style) : text;
}

std::string json_report(const PredictReport& report) {
  const PredictResult& result = report.result;
  const PredictOptions& options = result.options;
  const Reentering back = reentering(result);
  Json document{{"schema", "kvbound-predict-1"}};
  document.update(fields_of(environment()));
  document["seed"] = nullptr;  // nothing here is drawn at random
  document["trace"] = trace_facts(result.trace, report.sha256);
  document["steps"] = options.steps;
  document["ema"] = options.ema;
  document["window"] = options.window;
  document["policy"] = canonical(options.policy);
  document["budget"] = to_string(options.budget);
  document["top"] = to_string(options.top);
  document["predictions"] =
      predictions([&](size_t p) { return all_of(result, &HeadPrediction::relative_errors, p); },
                  [&](size_t p) { return all_of(result, &HeadPrediction::entry_errors, p); });
  document["reentering"] = {{"ever", back.ever}, {"at_a_step", back.at_a_step}};
  document["mass"] = masses(options, [&](size_t s) { return all_of(result, &HeadPrediction::mass, s); });
  document["layers"] = Json::array();
  for (const LayerPrediction& layer : result.layers) document["layers"].push_back(to_json(layer, options));
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvbound::sim
