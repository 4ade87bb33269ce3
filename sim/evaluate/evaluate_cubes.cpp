#include "evaluate_cubes.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/list_cube.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "correlations_cube.hpp"
#include "estimate_columns.hpp"
#include "task_figures.hpp"

namespace kvbound::sim {
namespace {

using Json = nlohmann::ordered_json;

const Figure kKind = text_figure("kind", "of the task: which table it belongs to", Shown::always);
const Figure kForm =
    text_figure("form", "answer: what greedy decoding must give; or continuation", Shown::if_asked);
const Figure kDepth = number_figure("depth", "where in the context the needle is, from 0 to 1");
const Figure kTask = text_figure("task", "its id");

std::string form(bool is_answer) { return is_answer ? "answer" : "continuation"; }

// A task through a cache, and one of its tokens, steps or layers.
struct TaskPlace {
  TaskView view;
  size_t at = 0;
};
using PlaceFigures = std::vector<FigureOf<TaskPlace>>;

// Tasks through a cache; place 0 of the runs is the full cache.
struct Group {
  const std::vector<size_t>& tasks;
  size_t run = 0;
};

const PlaceFigures& task_keys() {
  static const PlaceFigures kKeys{
      {kTask, [](const TaskPlace& of) { return of.view.task.id; }},
      {kKind, [](const TaskPlace& of) { return of.view.task.kind; }},
      {kForm, [](const TaskPlace& of) { return form(of.view.task.is_answer); }},
      {kDepth, [](const TaskPlace& of) { return of.view.task.depth.value_or(kUndefined); }}};
  return kKeys;
}

PlaceFigures keys_of_tasks_and(const PlaceFigures& more) {
  PlaceFigures keys = task_keys();
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

PlaceFigures as_place_figures(const std::vector<TaskFigure>& figures) {
  PlaceFigures all;
  for (const TaskFigure& figure : figures)
    all.push_back({figure.figure, [of = figure.of](const TaskPlace& place) { return of(place.view); }});
  return all;
}

std::vector<TaskFigure> figures_named(std::initializer_list<std::string_view> names) {
  std::vector<TaskFigure> found;
  std::ranges::copy_if(task_figures(), std::back_inserter(found), [&](const TaskFigure& one) {
    return std::ranges::find(names, one.figure.name) != names.end();
  });
  return found;
}

void append(std::vector<Column>& columns, std::vector<Column> more) {
  std::ranges::move(more, std::back_inserter(columns));
}

// The axes of an evaluation, and what is to be seen along them.
class EvaluateCubes {
 public:
  explicit EvaluateCubes(const EvaluateReport& report)
      : result_(report.result),
        base_(report.base),
        bootstrap_(report.resamples, report.seed),
        kinds_(kinds_of(report.result.tasks)),
        kind_axis_(kind_axis()),
        runs_(run_axis()),
        layers_(counted_axis("layer", count_figure("layer", "of the model, from 0"), result_.model.layers)),
        tasks_(axis("task", columns_of(task_keys(), places(1)))) {}

  Cube runs() const;
  Cube layers() const;
  Cube depths() const;
  Cube tasks() const;
  Cube task_runs() const {
    return {"task_runs", {tasks_, runs_}, columns_of(as_place_figures(task_figures()), places(run_count()))};
  }
  Cube task_layers() const;
  Cube tokens() const;
  Cube steps() const;
  Cube correlations() const { return correlations_cube(result_, bootstrap_, kind_axis_); }

 private:
  SharedAxis kind_axis() const;
  SharedAxis run_axis() const;
  size_t run_count() const { return static_cast<size_t>(runs_->size()); }
  TaskView view(size_t task, size_t run) const {
    const TaskResult& found = result_.results[task];
    return {result_.tasks[task], found, run > 0 ? &found.runs[run - 1] : nullptr};
  }
  // The tasks through the first `runs` of the caches, at `count` places of each: [task, place, run].
  template <class Count>
  std::vector<TaskPlace> places(size_t runs, const Count& count) const {
    std::vector<TaskPlace> all;
    for (size_t task = 0; task < result_.tasks.size(); ++task) {
      for (size_t at = 0; at < count(task); ++at) {
        for (size_t run = 0; run < runs; ++run) all.push_back({view(task, run), at});
      }
    }
    return all;
  }
  std::vector<TaskPlace> places(size_t runs) const {
    return places(runs, [](size_t) { return size_t{1}; });
  }
  template <class Count>
  Cube of_places(const char* name, const char* place, const PlaceFigures& keys, const PlaceFigures& figures,
                 const Count& count) const {
    return {name,
            {axis(place, columns_of(keys, places(1, count))), runs_},
            columns_of(figures, places(run_count(), count))};
  }
  // [kind, run]
  std::vector<Group> groups() const;
  // The base policy's place at the same budget; none for itself.
  std::optional<size_t> base_of(size_t run) const;
  // The figure of those tasks that have it; less that of the run `base` on the same task, if there is one.
  std::vector<double> numbers(const TaskFigure& figure, const Group& group,
                              std::optional<size_t> base = {}) const;
  // Of every group the mean of such numbers; less_base: less the base policy's, none where it did not run.
  std::vector<std::optional<Estimate>> means(const TaskFigure& figure, bool less_base) const;
  // The figure's mean, or sum; NaN if there is none.
  double of_group(const TaskFigure& figure, const Group& group) const;
  Column bytes(const Column& stored_entries) const;
  double hidden_error(size_t task, size_t run, size_t layer) const {
    return run > 0 ? view(task, run).run->hidden_error[layer] : kUndefined;
  }

  const EvaluateResult& result_;
  const std::optional<Policy>& base_;
  Bootstrap bootstrap_;
  std::vector<TaskKind> kinds_;
  SharedAxis kind_axis_, runs_, layers_, tasks_;
};

SharedAxis EvaluateCubes::kind_axis() const {
  const std::vector<FigureOf<TaskKind>> keys{
      {kKind, &TaskKind::name},
      {kForm, [](const TaskKind& kind) { return form(kind.answers); }},
      {count_figure("tasks", "of this kind", Shown::if_asked),
       [](const TaskKind& kind) { return static_cast<double>(kind.tasks.size()); }}};
  return axis("kind", columns_of(keys, kinds_));
}

SharedAxis EvaluateCubes::run_axis() const {
  Column label =
      text_column(text_figure("label", "policy", "as it was named", Shown::always), {"full cache"});
  Column policy =
      text_column(text_figure("policy", "canonical: every component, every option; of the full cache none",
                              Shown::if_asked),
                  {""});
  Column budget = text_column(
      text_figure("budget", "entries per KV head, or a share of the tokens read before compression",
                  Shown::always),
      {"100%"});
  for (const Run& run : result_.options.runs) {
    label.texts().push_back(run.policy.label);
    policy.texts().push_back(canonical(run.policy.policy));
    budget.texts().push_back(to_string(run.budget));
  }
  return axis("run", {label, policy, budget});
}

std::vector<Group> EvaluateCubes::groups() const {
  std::vector<Group> all;
  for (const TaskKind& kind : kinds_) {
    for (size_t run = 0; run < run_count(); ++run) all.push_back({kind.tasks, run});
  }
  return all;
}

std::optional<size_t> EvaluateCubes::base_of(size_t run) const {
  const std::vector<Run>& runs = result_.options.runs;
  if (run == 0 || !base_ || runs[run - 1].policy.policy == *base_) return std::nullopt;
  for (size_t b = 0; b < runs.size(); ++b) {
    if (runs[b].policy.policy == *base_ && runs[b].budget == runs[run - 1].budget) return b + 1;
  }
  return std::nullopt;
}

std::vector<double> EvaluateCubes::numbers(const TaskFigure& figure, const Group& group,
                                           std::optional<size_t> base) const {
  std::vector<double> found;
  for (const size_t task : group.tasks) {
    const double number = figure.of(view(task, group.run)) - (base ? figure.of(view(task, *base)) : 0);
    if (std::isfinite(number)) found.push_back(number);
  }
  return found;
}

double EvaluateCubes::of_group(const TaskFigure& figure, const Group& group) const {
  const std::vector<double> all = numbers(figure, group);
  if (all.empty()) return kUndefined;
  return figure.is_sum ? std::accumulate(all.begin(), all.end(), 0.0) : mean_of(all);
}

std::vector<std::optional<Estimate>> EvaluateCubes::means(const TaskFigure& figure, bool less_base) const {
  std::vector<std::optional<Estimate>> all;
  for (const Group& group : groups()) {
    const std::optional<size_t> base = less_base ? base_of(group.run) : std::nullopt;
    all.push_back(less_base && !base ? std::nullopt : bootstrap_.mean(numbers(figure, group, base)));
  }
  return all;
}

Column EvaluateCubes::bytes(const Column& stored_entries) const {
  const LayerShape shape = traces::with_caches_of(shape_of(result_.model), result_.options.heads);
  Column bytes = number_column(number_figure(
      "bytes", "stored", "of all stored keys and values, mean over steps", Format::memory, Better::lower));
  for (const double entries : stored_entries.numbers()) {
    bytes.numbers().push_back(entries * static_cast<double>(result_.model.layers * shape.kv_heads * 2 *
                                                            shape.head_dim * size_of(result_.options.dtype)));
  }
  return bytes;
}

Cube EvaluateCubes::runs() const {
  Cube cube{"runs", {kind_axis_, runs_}, {}};
  for (const TaskFigure& figure : task_figures()) {
    if (figure.error) {
      append(cube.columns,
             estimate_columns(figure.figure, *figure.error, Shown::if_asked, means(figure, false)));
    } else {
      Column& column = cube.columns.emplace_back(number_column(figure.figure));
      for (const Group& group : groups()) column.numbers().push_back(of_group(figure, group));
    }
    if (figure.less_base) {
      const Figure less_base =
          number_figure(figure.figure.name + "_less_base", figure.figure.heading + " - base",
                        "the mean less that of the base policy at the same budget, paired by task",
                        figure.figure.better, *figure.less_base);
      append(cube.columns,
             estimate_columns(less_base, Shown::if_asked, *figure.less_base, means(figure, true)));
    }
    if (figure.figure.name == "stored_entries") cube.columns.push_back(bytes(cube.columns.back()));
  }
  return cube;
}

Column hidden_column() {
  return number_column(number_figure(
      "hidden_error", "hidden", "|| h - h_full ||_2 / || h_full ||_2 of the hidden state behind the layer",
      Better::lower));
}

Cube EvaluateCubes::layers() const {
  Column errors = hidden_column();
  for (const Group& group : groups()) {
    for (size_t layer = 0; layer < static_cast<size_t>(layers_->size()); ++layer) {
      std::vector<double> found;
      for (const size_t task : group.tasks) found.push_back(hidden_error(task, group.run, layer));
      errors.numbers().push_back(mean_of(found));
    }
  }
  return {"layers", {kind_axis_, runs_, layers_}, {std::move(errors)}};
}

Cube EvaluateCubes::depths() const {
  Column kinds = text_column(kKind), depths = number_column(kDepth);
  Column tasks = number_column(count_figure("tasks", "answers of this kind and depth", Shown::if_asked));
  const std::vector<TaskFigure> figures = figures_named({"exact", "hits"});
  Cube cube{"depths", {}, {}};
  for (const TaskFigure& figure : figures) cube.columns.push_back(number_column(figure.figure));
  cube.columns.back().figure.shown = Shown::if_asked;
  for (const TaskKind& kind : kinds_) {
    std::map<double, std::vector<size_t>> by_depth;
    for (const size_t task : kind.tasks) {
      if (kind.answers && result_.tasks[task].depth) by_depth[*result_.tasks[task].depth].push_back(task);
    }
    for (const auto& [depth, there] : by_depth) {
      kinds.texts().push_back(kind.name);
      depths.numbers().push_back(depth);
      tasks.numbers().push_back(static_cast<double>(there.size()));
      for (size_t run = 0; run < run_count(); ++run) {
        for (size_t f = 0; f < figures.size(); ++f)
          cube.columns[f].numbers().push_back(of_group(figures[f], {there, run}));
      }
    }
  }
  cube.axes = {axis("depth", {kinds, depths, tasks}), runs_};
  return cube;
}

Cube EvaluateCubes::tasks() const {
  const PlaceFigures figures{
      {count_figure("prompt_tokens", "tokens of the prompt"),
       [](const TaskPlace& of) { return static_cast<double>(of.view.task.prompt.size()); }},
      {count_figure("compress_at", "tokens that are read before the cache is compressed"),
       [](const TaskPlace& of) { return static_cast<double>(of.view.task.compress_at); }},
      {count_figure("steps", "decode steps"),
       [](const TaskPlace& of) { return static_cast<double>(of.view.result.steps); }},
      {number_figure("prefill_seconds", "prefill", "wall time of reading the prompt, seconds",
                     Format::duration),
       [](const TaskPlace& of) { return of.view.result.prefill_seconds; }},
      {number_figure("decode_seconds", "decoding", "wall time of decoding by all runs together, seconds",
                     Format::duration),
       [](const TaskPlace& of) { return of.view.result.decode_seconds; }}};
  return {"tasks", {tasks_}, columns_of(figures, places(1))};
}

Cube EvaluateCubes::task_layers() const {
  Column errors = hidden_column();
  for (size_t task = 0; task < result_.tasks.size(); ++task) {
    for (size_t run = 0; run < run_count(); ++run) {
      for (size_t layer = 0; layer < static_cast<size_t>(layers_->size()); ++layer)
        errors.numbers().push_back(hidden_error(task, run, layer));
    }
  }
  return {"task_layers", {tasks_, runs_, layers_}, {std::move(errors)}};
}

Cube EvaluateCubes::tokens() const {
  const PlaceFigures keys =
      keys_of_tasks_and({{count_figure("token", "of the target, from 0"),
                          [](const TaskPlace& of) { return static_cast<double>(of.at); }},
                         {count_figure("target", "the token that is given"), [](const TaskPlace& of) {
                            return static_cast<double>(of.view.task.target[of.at]);
                          }}});
  const PlaceFigures figures{
      {number_figure("kl", "KL", "of the distribution that predicts the token, nats"),
       [](const TaskPlace& of) { return of.view.run ? of.view.run->kl[of.at] : kUndefined; }},
      {number_figure("nll", "NLL", "-ln p of the token, nats"),
       [](const TaskPlace& of) { return of.view.nll()[of.at]; }},
      {count_figure("top1", "the most likely token; of equal ones the smaller"),
       [](const TaskPlace& of) { return static_cast<double>(of.view.top1()[of.at]); }}};
  return of_places("tokens", "token", keys, figures,
                   [&](size_t task) { return result_.tasks[task].target.size(); });
}

Cube EvaluateCubes::steps() const {
  const PlaceFigures keys{{kTask, [](const TaskPlace& of) { return of.view.task.id; }},
                          {count_figure("step", "decode step, from 0"),
                           [](const TaskPlace& of) { return static_cast<double>(of.at); }}};
  PlaceFigures figures = as_place_figures(figures_named({"entries", "stored_entries"}));
  figures[0].number = [](const TaskPlace& of) {
    return of.view.run ? of.view.run->entries[of.at] : kUndefined;
  };
  figures[1].number = [](const TaskPlace& of) {
    return of.view.run ? of.view.run->stored_entries[of.at] : kUndefined;
  };
  return of_places("steps", "step", keys, figures,
                   [&](size_t task) { return static_cast<size_t>(result_.results[task].steps); });
}

Json model_facts(const EvaluateReport& report) {
  const traces::ModelConfig& model = report.result.model;
  return {{"path", report.model_path},  {"sha256", report.model_sha256},    {"name", model.name},
          {"layers", model.layers},     {"query_heads", model.query_heads}, {"kv_heads", model.kv_heads},
          {"head_dim", model.head_dim}, {"model_dim", model.model_dim},     {"vocabulary", model.vocabulary}};
}

}  // namespace

Part evaluate_part(const EvaluateReport& report) {
  const EvaluateOptions& options = report.result.options;
  const EvaluateCubes cubes(report);
  Part part{{}, {}, {"tokens"}};
  part.facts = {{"model", model_facts(report)},
                {"tasks_file", {{"path", report.tasks_path}, {"sha256", report.tasks_sha256}}},
                {"backend", report.backend()},
                {"dtype", name(options.dtype)},
                {"heads", traces::name(options.heads)},
                {"window", options.window},
                {"recall_of", options.recall_of},
                {"step_limit", report.step_limit ? Json(*report.step_limit) : Json()},
                {"base", report.base ? Json(canonical(*report.base)) : Json()},
                {"resamples", report.resamples}};
  part.cubes = {cubes.runs(),      cubes.layers(),      cubes.depths(), cubes.correlations(), cubes.tasks(),
                cubes.task_runs(), cubes.task_layers(), cubes.tokens(), cubes.steps()};
  return part;
}

std::vector<Figure> evaluate_columns() { return choosable_figures(*evaluate_part({}).find("runs")); }

}  // namespace kvbound::sim
