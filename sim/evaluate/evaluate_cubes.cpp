#include "evaluate_cubes.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "correlations.hpp"
#include "estimate_columns.hpp"
#include "task_figures.hpp"

namespace kvbound::sim {
namespace {

using Json = nlohmann::ordered_json;

const Figure kKind = text_figure("kind", "of the task: which table it belongs to", Shown::always);
const Figure kForm =
    text_figure("form", "answer: what greedy decoding must give; or continuation", Shown::if_asked);
const Figure kDepth{
    .name = "depth", .heading = "depth", .meaning = "where in the context the needle is, from 0 to 1"};
const Figure kTask = text_figure("task", "its id");

std::string form(bool is_answer) { return is_answer ? "answer" : "continuation"; }

std::vector<double> finite(std::vector<double> numbers) {
  std::erase_if(numbers, [](double number) { return !std::isfinite(number); });
  return numbers;
}

std::vector<double> differences(std::vector<double> numbers, const std::vector<double>& others) {
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] -= others[i];
  return numbers;
}

// The keys of a task, for each of its places on an axis.
struct TaskKeys {
  Column task = text_column(kTask), kind = text_column(kKind), form = text_column(kForm),
         depth = number_column(kDepth);

  void add(const Task& of) {
    task.texts().push_back(of.id);
    kind.texts().push_back(of.kind);
    form.texts().push_back(sim::form(of.is_answer));
    depth.numbers().push_back(of.depth.value_or(kUndefined));
  }
  std::vector<Column> with(std::vector<Column> more) const {
    more.insert(more.begin(), {task, kind, form, depth});
    return more;
  }
};

// The axes of an evaluation, and what is to be seen along them. Place 0 of the runs is the full cache.
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
        tasks_(task_axis()) {}

  Cube runs() const;
  Cube layers() const;
  Cube depths() const;
  Cube correlations() const;
  Cube tasks() const;
  Cube task_runs() const;
  Cube task_layers() const;
  Cube tokens() const;
  Cube steps() const;

 private:
  SharedAxis kind_axis() const;
  SharedAxis run_axis() const;
  SharedAxis task_axis() const;
  size_t run_count() const { return static_cast<size_t>(runs_->size()); }
  TaskView view(size_t task, size_t run) const {
    const TaskResult& found = result_.results[task];
    return {result_.tasks[task], found, run > 0 ? &found.runs[run - 1] : nullptr};
  }
  // The base policy's place at the same budget; none for itself.
  std::optional<size_t> base_of(size_t run) const;
  std::vector<double> of_tasks(const TaskFigure& figure, const std::vector<size_t>& tasks, size_t run) const;
  // The mean, or sum, over those tasks that have the figure; NaN if none has.
  static double over_tasks(const TaskFigure& figure, const std::vector<double>& numbers);
  void add_mean(const TaskFigure& figure, std::vector<Column>& columns) const;
  void add_less_base(const TaskFigure& figure, std::vector<Column>& columns) const;
  Column bytes(const Column& stored_entries) const;
  // Hidden errors behind a layer, of each task and run.
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
  Column names = text_column(kKind), forms = text_column(kForm);
  Column tasks = number_column(count_figure("tasks", "of this kind", Shown::if_asked));
  for (const TaskKind& kind : kinds_) {
    names.texts().push_back(kind.name);
    forms.texts().push_back(form(kind.answers));
    tasks.numbers().push_back(static_cast<double>(kind.tasks.size()));
  }
  return axis("kind", {names, forms, tasks});
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

SharedAxis EvaluateCubes::task_axis() const {
  TaskKeys keys;
  for (const Task& task : result_.tasks) keys.add(task);
  return axis("task", keys.with({}));
}

std::optional<size_t> EvaluateCubes::base_of(size_t run) const {
  const std::vector<Run>& runs = result_.options.runs;
  if (run == 0 || !base_ || runs[run - 1].policy.policy == *base_) return std::nullopt;
  for (size_t b = 0; b < runs.size(); ++b) {
    if (runs[b].policy.policy == *base_ && runs[b].budget == runs[run - 1].budget) return b + 1;
  }
  return std::nullopt;
}

std::vector<double> EvaluateCubes::of_tasks(const TaskFigure& figure, const std::vector<size_t>& tasks,
                                            size_t run) const {
  std::vector<double> numbers;
  for (const size_t task : tasks) numbers.push_back(figure.of(view(task, run)));
  return numbers;
}

double EvaluateCubes::over_tasks(const TaskFigure& figure, const std::vector<double>& numbers) {
  const std::vector<double> all = finite(numbers);
  if (all.empty()) return kUndefined;
  return figure.is_sum ? std::accumulate(all.begin(), all.end(), 0.0) : mean_of(all);
}

void EvaluateCubes::add_mean(const TaskFigure& figure, std::vector<Column>& columns) const {
  if (!figure.error) {
    Column& column = columns.emplace_back(number_column(figure.figure));
    for (const TaskKind& kind : kinds_) {
      for (size_t run = 0; run < run_count(); ++run)
        column.numbers().push_back(over_tasks(figure, of_tasks(figure, kind.tasks, run)));
    }
    return;
  }
  EstimateColumns estimates(figure.figure, *figure.error, Shown::if_asked);
  for (const TaskKind& kind : kinds_) {
    for (size_t run = 0; run < run_count(); ++run) {
      const std::vector<double> numbers = finite(of_tasks(figure, kind.tasks, run));
      estimates.add(numbers.empty() ? std::nullopt : std::optional(bootstrap_.mean(numbers)));
    }
  }
  std::move(estimates).append_to(columns);
}

void EvaluateCubes::add_less_base(const TaskFigure& figure, std::vector<Column>& columns) const {
  if (!figure.less_base) return;
  EstimateColumns estimates(
      {.name = figure.figure.name + "_less_base",
       .heading = figure.figure.heading + " - base",
       .meaning = "the mean less that of the base policy at the same budget, paired by task",
       .better = figure.figure.better,
       .shown = *figure.less_base},
      Shown::if_asked, *figure.less_base);
  for (const TaskKind& kind : kinds_) {
    for (size_t run = 0; run < run_count(); ++run) {
      const auto base = base_of(run);
      const std::vector<double> numbers =
          base ? finite(differences(of_tasks(figure, kind.tasks, run), of_tasks(figure, kind.tasks, *base)))
               : std::vector<double>();
      estimates.add(numbers.empty() ? std::nullopt : std::optional(bootstrap_.mean(numbers)));
    }
  }
  std::move(estimates).append_to(columns);
}

Column EvaluateCubes::bytes(const Column& stored_entries) const {
  const traces::ModelConfig& model = result_.model;
  Column bytes = number_column({.name = "bytes",
                                .heading = "stored",
                                .meaning = "of all stored keys and values, mean over steps",
                                .format = Format::memory,
                                .better = Better::lower});
  for (const double entries : stored_entries.numbers()) {
    bytes.numbers().push_back(entries * static_cast<double>(model.layers * model.kv_heads * 2 *
                                                            model.head_dim * size_of(result_.options.dtype)));
  }
  return bytes;
}

Cube EvaluateCubes::runs() const {
  Cube cube{"runs", {kind_axis_, runs_}, {}};
  for (const TaskFigure& figure : task_figures()) {
    add_mean(figure, cube.columns);
    add_less_base(figure, cube.columns);
    if (figure.figure.name == "stored_entries") cube.columns.push_back(bytes(cube.columns.back()));
  }
  return cube;
}

Column hidden_column() {
  return number_column({.name = "hidden_error",
                        .heading = "hidden",
                        .meaning = "|| h - h_full ||_2 / || h_full ||_2 of the hidden state behind the layer",
                        .better = Better::lower});
}

Cube EvaluateCubes::layers() const {
  Column errors = hidden_column();
  for (const TaskKind& kind : kinds_) {
    for (size_t run = 0; run < run_count(); ++run) {
      for (size_t layer = 0; layer < static_cast<size_t>(layers_->size()); ++layer) {
        std::vector<double> numbers;
        for (const size_t task : kind.tasks) numbers.push_back(hidden_error(task, run, layer));
        errors.numbers().push_back(mean_of(numbers));
      }
    }
  }
  return {"layers", {kind_axis_, runs_, layers_}, {std::move(errors)}};
}

Cube EvaluateCubes::depths() const {
  Column kinds = text_column(kKind), depths = number_column(kDepth);
  Column tasks = number_column(count_figure("tasks", "answers of this kind and depth", Shown::if_asked));
  Cube cube{"depths", {}, {}};
  std::vector<TaskFigure> figures;
  for (const TaskFigure& figure : task_figures()) {
    if (figure.figure.name != "exact" && figure.figure.name != "hits") continue;
    cube.columns.push_back(number_column(figures.emplace_back(figure).figure));
  }
  cube.columns.back().figure.shown = Shown::if_asked;
  for (const TaskKind& kind : kinds_) {
    std::vector<double> known;
    for (const size_t task : kind.tasks) {
      if (kind.answers && result_.tasks[task].depth) known.push_back(*result_.tasks[task].depth);
    }
    std::ranges::sort(known);
    known.erase(std::unique(known.begin(), known.end()), known.end());
    for (const double depth : known) {
      std::vector<size_t> there;
      std::ranges::copy_if(kind.tasks, std::back_inserter(there),
                           [&](size_t task) { return result_.tasks[task].depth == depth; });
      kinds.texts().push_back(kind.name);
      depths.numbers().push_back(depth);
      tasks.numbers().push_back(static_cast<double>(there.size()));
      for (size_t run = 0; run < run_count(); ++run) {
        for (size_t f = 0; f < figures.size(); ++f)
          cube.columns[f].numbers().push_back(over_tasks(figures[f], of_tasks(figures[f], there, run)));
      }
    }
  }
  cube.axes = {axis("depth", {kinds, depths, tasks}), runs_};
  return cube;
}

Cube EvaluateCubes::correlations() const {
  std::vector<std::string> outcomes, indicators, budgets;
  for (const Outcome outcome : kOutcomes) outcomes.emplace_back(name(outcome));
  for (const Indicator indicator : kIndicators) indicators.emplace_back(name(indicator));
  const std::vector<Correlation> all = sim::correlations(result_, bootstrap_);
  const size_t each = outcomes.size() * indicators.size() * std::max<size_t>(kinds_.size(), 1);
  for (size_t i = 0; i < all.size() / each; ++i)
    budgets.push_back(all[i].budget ? to_string(*all[i].budget) : "all");
  Column policies = number_column(count_figure("policies", "that have the indicator", Shown::if_asked));
  EstimateColumns of_tasks({.name = "of_tasks",
                            .heading = "of a task",
                            .meaning = "Spearman's rank correlation over the runs of a task, mean over tasks",
                            .better = Better::higher},
                           Shown::if_asked, Shown::if_asked);
  Column of_tasks_count =
      number_column(count_figure("of_tasks_count", "tasks that have one", Shown::if_asked));
  EstimateColumns pairs(
      {.name = "pairs",
       .heading = "pairs",
       .meaning = "share of the pairs of runs of a task that both order alike, mean over tasks",
       .format = Format::share,
       .better = Better::higher},
      Shown::if_asked, Shown::if_asked);
  Column pairs_count = number_column(count_figure("pairs_count", "tasks that have one", Shown::if_asked));
  Column of_means = number_column({.name = "of_means",
                                   .heading = "of means",
                                   .meaning = "Spearman's rank correlation of the runs' means over tasks",
                                   .better = Better::higher});
  std::vector<Column> ends = interval_columns(of_means.figure, Shown::if_asked);
  const auto count_of = [](const std::optional<Estimate>& estimate) {
    return estimate ? static_cast<double>(estimate->count) : kUndefined;
  };
  for (const Correlation& one : all) {
    policies.numbers().push_back(static_cast<double>(one.policies));
    of_tasks.add(one.of_tasks);
    of_tasks_count.numbers().push_back(count_of(one.of_tasks));
    pairs.add(one.pairs);
    pairs_count.numbers().push_back(count_of(one.pairs));
    of_means.numbers().push_back(one.of_means.value_or(kUndefined));
    add_interval(ends[0], ends[1], one.of_means_interval);
  }
  Cube cube{
      "correlations",
      {kind_axis_,
       axis("outcome", {text_column(text_figure("outcome", "what is to be predicted"), outcomes)}),
       axis("indicator",
            {text_column(text_figure("indicator",
                                     "what predicts it; other_half: the outcome on the other half of the "
                                     "tokens, a ceiling",
                                     Shown::always),
                         indicators)}),
       axis("budget", {text_column(text_figure("budget", "of the runs; or all together"), budgets)})},
      {std::move(policies)}};
  std::move(of_tasks).append_to(cube.columns);
  cube.columns.push_back(std::move(of_tasks_count));
  std::move(pairs).append_to(cube.columns);
  for (Column* column : {&pairs_count, &of_means, &ends[0], &ends[1]})
    cube.columns.push_back(std::move(*column));
  return cube;
}

Cube EvaluateCubes::tasks() const {
  Cube cube{
      "tasks",
      {tasks_},
      {number_column(count_figure("prompt_tokens", "tokens of the prompt")),
       number_column(count_figure("compress_at", "tokens that are read before the cache is compressed")),
       number_column(count_figure("steps", "decode steps")),
       number_column({.name = "prefill_seconds",
                      .heading = "prefill",
                      .meaning = "wall time of reading the prompt, seconds",
                      .format = Format::duration}),
       number_column({.name = "decode_seconds",
                      .heading = "decoding",
                      .meaning = "wall time of decoding by all runs together, seconds",
                      .format = Format::duration})}};
  for (size_t t = 0; t < result_.tasks.size(); ++t) {
    const Task& task = result_.tasks[t];
    const TaskResult& found = result_.results[t];
    const double numbers[] = {static_cast<double>(task.prompt.size()), static_cast<double>(task.compress_at),
                              static_cast<double>(found.steps), found.prefill_seconds, found.decode_seconds};
    for (size_t c = 0; c < cube.columns.size(); ++c) cube.columns[c].numbers().push_back(numbers[c]);
  }
  return cube;
}

Cube EvaluateCubes::task_runs() const {
  Cube cube{"task_runs", {tasks_, runs_}, {}};
  for (const TaskFigure& figure : task_figures()) {
    Column& column = cube.columns.emplace_back(number_column(figure.figure));
    for (size_t task = 0; task < result_.tasks.size(); ++task) {
      for (size_t run = 0; run < run_count(); ++run) column.numbers().push_back(figure.of(view(task, run)));
    }
  }
  return cube;
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
  TaskKeys keys;
  Column tokens = number_column(count_figure("token", "of the target, from 0"));
  Column targets = number_column(count_figure("target", "the token that is given"));
  Cube cube{
      "tokens",
      {},
      {number_column(
           {.name = "kl", .heading = "KL", .meaning = "of the distribution that predicts the token, nats"}),
       number_column({.name = "nll", .heading = "NLL", .meaning = "-ln p of the token, nats"}),
       number_column(count_figure("top1", "the most likely token; of equal ones the smaller"))}};
  for (size_t t = 0; t < result_.tasks.size(); ++t) {
    const Task& task = result_.tasks[t];
    for (size_t i = 0; i < task.target.size(); ++i) {
      keys.add(task);
      tokens.numbers().push_back(static_cast<double>(i));
      targets.numbers().push_back(static_cast<double>(task.target[i]));
      for (size_t run = 0; run < run_count(); ++run) {
        const TaskView one = view(t, run);
        const double numbers[] = {one.run ? one.run->kl[i] : kUndefined, one.nll()[i],
                                  static_cast<double>(one.top1()[i])};
        for (size_t c = 0; c < cube.columns.size(); ++c) cube.columns[c].numbers().push_back(numbers[c]);
      }
    }
  }
  cube.axes = {axis("token", keys.with({tokens, targets})), runs_};
  return cube;
}

Cube EvaluateCubes::steps() const {
  Column tasks = text_column(kTask), steps = number_column(count_figure("step", "decode step, from 0"));
  Cube cube{"steps", {}, {}};
  for (const TaskFigure& figure : task_figures()) {
    if (figure.figure.name == "entries" || figure.figure.name == "stored_entries")
      cube.columns.push_back(number_column(figure.figure));
  }
  for (size_t t = 0; t < result_.tasks.size(); ++t) {
    for (size_t i = 0; i < static_cast<size_t>(result_.results[t].steps); ++i) {
      tasks.texts().push_back(result_.tasks[t].id);
      steps.numbers().push_back(static_cast<double>(i));
      for (size_t run = 0; run < run_count(); ++run) {
        const RunFigures* const found = view(t, run).run;
        cube.columns[0].numbers().push_back(found ? found->entries[i] : kUndefined);
        cube.columns[1].numbers().push_back(found ? found->stored_entries[i] : kUndefined);
      }
    }
  }
  cube.axes = {axis("step", {tasks, steps}), runs_};
  return cube;
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
