#include "replay_cubes.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/diff/agreement_figures.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "replay_figures.hpp"

namespace kvbound::sim {
namespace {

using Json = nlohmann::ordered_json;

const Figure kLabel = text_figure("label", "policy", "the policy as it was named", Shown::always);
const Figure kPolicy = text_figure("policy", "canonical: every component, every option", Shown::if_asked);
const Figure kBudget = text_figure("budget", "entries per KV head, or a share of the prompt", Shown::always);
const Figure kBackend = text_figure("backend", "what computed it");
const Figure kEntries = count_figure("entries", "the budget in entries per KV head");
const Figure kRun = count_figure("run", "the run's place among all runs, from 0");
const Figure kLayer = count_figure("layer", "the model's number of the layer");

// The axes and the views of a trace's runs.
class ReplayCubes {
 public:
  ReplayCubes(const ReplayResult& result, const std::optional<Policy>& base)
      : result_(result), runs_(run_axis()), layers_(layer_axis(result.trace, result.scope.layers)) {
    const int64_t query_heads = result.trace.shape.query_heads;
    steps_ = counted_axis("step", count_figure("step", "decode step, from 0"), result.scope.steps);
    heads_ = counted_axis("head", count_figure("head", "query head, from 0"), query_heads);
    kv_heads_ =
        counted_axis("kv_head", count_figure("kv_head", "KV head, from 0"), result.trace.shape.kv_heads);
    for (const RunResult& run : result.runs) {
      summaries_.push_back(summarise(run, result.scope));
      bases_.push_back(base_of(run, result, base));
    }
  }

  Cube runs() const;
  Cube layers() const;
  Cube layer_steps() const;
  Cube heads() const;
  Cube kv_heads() const;
  Cube steps() const;
  Cube merges() const;
  Cube times() const;
  std::vector<Cube> agreement() const;

 private:
  SharedAxis run_axis() const;
  // Appends of every run and layer what of(metrics) returns, or so many undefined numbers if it is empty.
  template <class Of>
  Column of_layers(const Figure& figure, int64_t size, const Of& of) const;

  const ReplayResult& result_;
  SharedAxis runs_, layers_, steps_, heads_, kv_heads_;
  std::vector<Summary> summaries_;
  std::vector<const RunResult*> bases_;
};

SharedAxis ReplayCubes::run_axis() const {
  Column label = text_column(kLabel);
  Column policy = text_column(kPolicy), budget = text_column(kBudget), backend = text_column(kBackend);
  Column entries = number_column(kEntries);
  for (const RunResult& run : result_.runs) {
    label.texts().push_back(run.run.policy.label);
    policy.texts().push_back(canonical(run.run.policy.policy));
    budget.texts().push_back(to_string(run.run.budget));
    entries.numbers().push_back(static_cast<double>(run.entries));
    backend.texts().push_back(run.run.backend);
  }
  return axis("run", {label, policy, budget, entries, backend});
}

template <class Of>
Column ReplayCubes::of_layers(const Figure& figure, int64_t size, const Of& of) const {
  Column column = number_column(figure);
  std::vector<double>& all = column.numbers();
  all.reserve(result_.runs.size() * result_.scope.layers.size() * static_cast<size_t>(size));
  for (const RunResult& run : result_.runs) {
    for (const LayerMetrics& metrics : run.layers) {
      const std::vector<double> numbers = of(metrics);
      if (numbers.empty()) {
        all.insert(all.end(), static_cast<size_t>(size), kUndefined);
      } else {
        all.insert(all.end(), numbers.begin(), numbers.end());
      }
    }
  }
  return column;
}

Cube ReplayCubes::runs() const {
  Cube cube{"runs", {runs_}, {}};
  for (const ReplayFigure& figure : replay_figures()) {
    if (figure.text_of_run) cube.columns.push_back(text_column(figure.figure));
    if (figure.is_of_runs()) cube.columns.push_back(number_column(figure.figure));
    std::vector<double> undefined;
    for (size_t r = 0; r < result_.runs.size(); ++r) {
      const RunView view{result_.runs[r], summaries_[r], result_.trace, bases_[r]};
      if (figure.text_of_run) {
        cube.columns.back().texts().push_back(figure.text_of_run(view));
        continue;
      }
      const RunNumber found = number_of_run(figure, view);
      cube.columns.back().numbers().push_back(found.number);
      undefined.push_back(static_cast<double>(found.undefined));
    }
    if (figure.figure.name == "recall")
      cube.columns.back().figure.heading = fmt::format("recall@{}", result_.scope.recall_of);
    if (!figure.may_be_undefined) continue;
    cube.columns.push_back(number_column(
        count_figure(figure.figure.name + "_undefined", "undefined " + figure.figure.heading,
                     "how many are undefined, as x/0 is, and left out of the mean", Shown::if_asked),
        std::move(undefined)));
  }
  Column base = number_column(
      count_figure("base_run", "base run",
                   "the run of the base policy at the same budget on the same backend", Shown::if_asked));
  for (const RunResult* run : bases_)
    base.numbers().push_back(run ? static_cast<double>(run - result_.runs.data()) : kUndefined);
  cube.columns.push_back(std::move(base));
  return cube;
}

Cube ReplayCubes::layers() const {
  Column entries = number_column(number_figure("layer_entries", "entries per KV head of the layer"));
  for (const RunResult& run : result_.runs) {
    for (const int64_t layer : result_.scope.layers)
      entries.numbers().push_back(mean_entries(run.budgets[static_cast<size_t>(layer)]));
  }
  return {"layers", {runs_, layers_}, {std::move(entries)}};
}

Cube ReplayCubes::layer_steps() const {
  Cube cube{"layer_steps", {runs_, layers_, steps_}, {}};
  for (const ReplayFigure& figure : replay_figures()) {
    if (figure.of_layer_steps)
      cube.columns.push_back(of_layers(figure.figure, steps_->size(), figure.of_layer_steps));
  }
  return cube;
}

Cube ReplayCubes::heads() const {
  Cube cube{"heads", {runs_, layers_, heads_}, {}};
  for (const ReplayFigure& figure : replay_figures()) {
    if (!figure.of_steps) continue;
    cube.columns.push_back(of_layers(figure.figure, heads_->size(), [&](const LayerMetrics& metrics) {
      const std::optional<Matrix> steps = figure.of_steps(metrics);
      return steps ? head_means(*steps) : std::vector<double>();
    }));
  }
  return cube;
}

Cube ReplayCubes::kv_heads() const {
  Cube cube{"kv_heads", {runs_, layers_, kv_heads_}, {}};
  for (const ReplayFigure& figure : replay_figures()) {
    if (figure.of_kv_heads)
      cube.columns.push_back(of_layers(figure.figure, kv_heads_->size(), figure.of_kv_heads));
  }
  return cube;
}

Cube ReplayCubes::steps() const {
  Cube cube{"steps", {runs_, layers_, steps_, heads_}, {}, true};
  for (const ReplayFigure& figure : replay_figures()) {
    if (!figure.of_steps) continue;
    cube.columns.push_back(
        of_layers(figure.figure, steps_->size() * heads_->size(), [&](const LayerMetrics& metrics) {
          const std::optional<Matrix> steps = figure.of_steps(metrics);
          const VectorView numbers = steps ? steps->numbers() : VectorView();
          return std::vector<double>(numbers.begin(), numbers.end());
        }));
  }
  return cube;
}

Cube ReplayCubes::merges() const {
  std::vector<Column> keys{number_column(kRun), number_column(kLayer),
                           number_column(count_figure("step", "decode step; -1: the prompt's end")),
                           number_column(count_figure("head", "query head, from 0"))};
  std::vector<Column> columns{
      number_column(number_figure("merge_perturbation", "merge change",
                                  "|| o(q, cache before) - o(q, cache after) ||_2, attention output units",
                                  Better::lower)),
      number_column(number_figure(
          "rounding", "the most that rounding explains of a merge that is lossless in exact arithmetic"))};
  for (size_t r = 0; r < result_.runs.size(); ++r) {
    for (size_t l = 0; l < result_.runs[r].layers.size(); ++l) {
      const std::optional<MergeMetrics>& merges = result_.runs[r].layers[l].merges;
      if (!merges) continue;
      for (const MergeChange& change : merges->changes) {
        const double place[] = {static_cast<double>(r),
                                static_cast<double>(result_.trace.layer_number(result_.scope.layers[l])),
                                static_cast<double>(change.step), static_cast<double>(change.query_head)};
        for (size_t k = 0; k < keys.size(); ++k) keys[k].numbers().push_back(place[k]);
        columns[0].numbers().push_back(change.perturbation);
        columns[1].numbers().push_back(change.rounding.value_or(kUndefined));
      }
    }
  }
  return {"merges", {axis("merge", std::move(keys))}, std::move(columns)};
}

Cube ReplayCubes::times() const {
  std::vector<Column> keys{text_column(kBackend),
                           text_column(text_figure("operation", "a step of the pipeline"))};
  std::vector<Column> columns{number_column(count_figure("calls", "calls of all layers and runs")),
                              number_column(number_figure("seconds", "time", "their wall time, seconds",
                                                          Format::duration, Better::lower))};
  for (const BackendTimes& backend : result_.times) {
    for (const OperationTimes::Entry& entry : backend.operations.entries()) {
      keys[0].texts().push_back(backend.backend);
      keys[1].texts().push_back(entry.operation);
      columns[0].numbers().push_back(static_cast<double>(entry.calls));
      columns[1].numbers().push_back(entry.seconds);
    }
  }
  return {"times", {axis("operation", std::move(keys))}, std::move(columns)};
}

std::vector<Cube> ReplayCubes::agreement() const {
  AgreementCubes cubes({kLabel, kPolicy, kBudget, kBackend});
  for (const RunResult& run : result_.runs) {
    if (!run.agreement) continue;
    cubes.add(
        {run.run.policy.label, canonical(run.run.policy.policy), to_string(run.run.budget), run.run.backend},
        *run.agreement, summaries(*run.agreement));
  }
  return cubes.cubes();
}

}  // namespace

std::vector<Figure> replay_columns() {
  std::vector<Figure> columns{kEntries, kBackend};
  for (const ReplayFigure& figure : replay_figures()) columns.push_back(figure.figure);
  return columns;
}

Json trace_facts(const traces::TraceInfo& info, const std::string& sha256) {
  return {{"path", info.path},
          {"sha256", sha256},
          {"model", info.model},
          {"source", info.source},
          {"storage", name(info.storage)},
          {"layers", info.layers},
          {"query_heads", info.shape.query_heads},
          {"kv_heads", info.recorded_kv_heads},
          {"heads", name(info.heads)},
          {"head_dim", info.shape.head_dim},
          {"model_dim", info.shape.model_dim},
          {"prompt_tokens", info.prompt_tokens},
          {"decode_tokens", info.decode_tokens},
          {"window_queries", info.window_queries},
          {"scale", info.scale}};
}

SharedAxis layer_axis(const traces::TraceInfo& info, const std::vector<int64_t>& layers) {
  Column number = number_column(kLayer);
  for (const int64_t layer : layers)
    number.numbers().push_back(static_cast<double>(info.layer_number(layer)));
  return axis("layer", {std::move(number)});
}

Part replay_part(const ReplayReport& report, const std::optional<Policy>& base, ReplayDetail detail) {
  const ReplayResult& result = report.result;
  const ReplayCubes cubes(result, base);
  Part part{trace_facts(result.trace, report.sha256), {}, {"steps", "layer_steps"}};
  std::vector<int64_t> layers;
  for (const int64_t layer : result.scope.layers) layers.push_back(result.trace.layer_number(layer));
  part.facts["replayed_layers"] = layers;
  part.facts["replayed_steps"] = result.scope.steps;
  part.facts["recall_of"] = result.scope.recall_of;
  part.facts["merge_bounds"] = result.scope.merge_bounds;
  part.facts["centred_bound"] = result.scope.centred_bound;
  part.facts["base"] = base ? Json(canonical(*base)) : Json();
  part.cubes = {cubes.runs(), cubes.times()};
  if (detail != ReplayDetail::table) {
    for (Cube& cube :
         std::vector{cubes.layers(), cubes.layer_steps(), cubes.heads(), cubes.kv_heads(), cubes.merges()})
      part.cubes.push_back(std::move(cube));
  }
  if (detail == ReplayDetail::rows) part.cubes.push_back(cubes.steps());
  for (Cube& cube : cubes.agreement()) part.cubes.push_back(std::move(cube));
  part.subject = {text_column(number_figure("trace", "the trace's path"), {result.trace.path})};
  return part;
}

}  // namespace kvbound::sim
