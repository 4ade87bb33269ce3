#include "recall_cubes.hpp"

#include <utility>

#include <kvbound/sim/replay/replay_cubes.hpp>

namespace kvbound::sim {
namespace {

struct Row {
  Figure figure;
  double RecallFigures::*of;
};

Figure recall_figure(const char* name, const char* heading, const char* meaning) {
  return number_figure(name, heading, meaning, Better::higher);
}

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows{
      {recall_figure("first_step", "step 1", "recall@k of the entries that decode step 1 would miss most"),
       &RecallFigures::first_step},
      {recall_figure("first_step_recent", "step 1, old",
                     "the same without the newest positions, which a window would keep in any case"),
       &RecallFigures::first_step_recent},
      {recall_figure("mean_step", "all steps",
                     "recall@k of the entries that decode steps would miss most, mean over their errors"),
       &RecallFigures::mean_step},
      {recall_figure("mean_step_recent", "all steps, old", "the same without the newest positions"),
       &RecallFigures::mean_step_recent}};
  return kRows;
}

std::vector<int64_t> layers_of(const RecallResult& result) {
  std::vector<int64_t> layers;
  for (const LayerRecall& layer : result.layers) layers.push_back(layer.layer);
  return layers;
}

// Every score with every window, as all layers have them.
std::vector<ScoreRecall> scored(const RecallResult& result) {
  return result.layers.empty() ? std::vector<ScoreRecall>() : result.layers.front().scores;
}

SharedAxis scored_axis(const RecallResult& result) {
  Column scores = text_column(text_figure("score", "by which entries are ranked", Shown::always));
  Column windows = number_column(count_figure("window", "last prompt queries that score", Shown::always));
  for (const ScoreRecall& one : scored(result)) {
    scores.texts().push_back(one.score);
    windows.numbers().push_back(static_cast<double>(one.window));
  }
  return axis("scored", {std::move(scores), std::move(windows)});
}

Cube scores_cube(const RecallResult& result, const SharedAxis& axis) {
  Cube cube{"scores", {axis}, {}};
  for (const Row& row : rows()) {
    Column& column = cube.columns.emplace_back(number_column(row.figure));
    for (size_t s = 0; s < static_cast<size_t>(axis->size()); ++s) {
      double sum = 0, count = 0;
      for (const LayerRecall& layer : result.layers) {
        for (const RecallFigures& head : layer.scores[s].heads) {
          sum += head.*row.of;
          ++count;
        }
      }
      column.numbers().push_back(sum / count);
    }
  }
  return cube;
}

Cube heads_cube(const RecallResult& result, const SharedAxis& axis) {
  Cube cube{"heads",
            {layer_axis(result.trace, layers_of(result)),
             counted_axis("head", count_figure("head", "query head, from 0"), result.trace.shape.query_heads),
             axis},
            {}};
  for (const Row& row : rows()) {
    Column& column = cube.columns.emplace_back(number_column(row.figure));
    for (const LayerRecall& layer : result.layers) {
      for (size_t h = 0; h < static_cast<size_t>(result.trace.shape.query_heads); ++h) {
        for (const ScoreRecall& score : layer.scores) column.numbers().push_back(score.heads[h].*row.of);
      }
    }
  }
  return cube;
}

}  // namespace

Part recall_part(const RecallReport& report) {
  const RecallResult& result = report.result;
  const SharedAxis scored = scored_axis(result);
  Part part{trace_facts(result.trace, report.sha256),
            {scores_cube(result, scored), heads_cube(result, scored)},
            {"heads"}};
  part.facts["k"] = result.options.k;
  part.facts["recent"] = result.options.recent;
  part.facts["windows"] = result.options.windows;
  part.subject = {
      text_column(text_figure("trace", "the trace's path"), {result.trace.path}),
      number_column(count_figure("k", "size of the sets compared"), {static_cast<double>(result.options.k)}),
      number_column(count_figure("recent", "newest prompt positions that 'old' excludes"),
                    {static_cast<double>(result.options.recent)})};
  return part;
}

std::vector<Figure> recall_columns() { return figures_of(rows()); }

}  // namespace kvbound::sim
