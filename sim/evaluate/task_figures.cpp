#include "task_figures.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <kvbound/sim/figures/cube.hpp>
#include <kvbound/sim/replay/replay_figures.hpp>

#include "statistics.hpp"

namespace kvbound::sim {
namespace {

using View = const TaskView&;

// The share of places where two lists of tokens are equal.
double share_equal(const std::vector<int64_t>& one, const std::vector<int64_t>& other) {
  int64_t equal = 0;
  for (size_t i = 0; i < one.size(); ++i) equal += one[i] == other[i] ? 1 : 0;
  return static_cast<double>(equal) / static_cast<double>(one.size());
}

double hits(View view) {
  return view.task.is_answer ? share_equal(view.top1(), view.task.target) : kUndefined;
}

double exact(View view) { return view.task.is_answer ? (hits(view) == 1 ? 1 : 0) : kUndefined; }

template <std::vector<double> RunFigures::*list>
double mean_of_list(View view) {
  return view.run ? mean_of(view.run->*list) : kUndefined;
}

template <std::optional<double> OpenLoop::*figure>
double open_loop(View view) {
  return view.run ? (view.run->open_loop.*figure).value_or(kUndefined) : kUndefined;
}

std::vector<TaskFigure> closed_loop_figures() {
  return {
      {.figure = {.name = "kl",
                  .heading = "KL",
                  .meaning = "KL(full || compressed) of the next token's distribution, nats",
                  .better = Better::lower},
       .of = mean_of_list<&RunFigures::kl>,
       .error = Shown::by_default,
       .less_base = Shown::by_default},
      {.figure = {.name = "nll",
                  .heading = "NLL",
                  .meaning = "-ln p of the given tokens, nats a token",
                  .better = Better::lower},
       .of = [](View view) { return mean_of(view.nll()); },
       .less_base = Shown::if_asked},
      {.figure = {.name = "delta_nll",
                  .heading = "dNLL",
                  .meaning = "by how much that is more than the full cache's: noisy, may be negative",
                  .better = Better::lower},
       .of =
           [](View view) {
             return view.run ? mean_of(view.nll()) - mean_of(view.result.full_nll) : kUndefined;
           },
       .error = Shown::by_default},
      {.figure = {.name = "agreement",
                  .heading = "top-1",
                  .meaning = "share of tokens whose most likely token is the full cache's",
                  .format = Format::share,
                  .better = Better::higher},
       .of =
           [](View view) { return view.run ? share_equal(view.top1(), view.result.full_top1) : kUndefined; },
       .error = Shown::if_asked},
      {.figure = {.name = "exact",
                  .heading = "exact",
                  .meaning = "answers that greedy decoding gives whole",
                  .format = Format::count,
                  .better = Better::higher},
       .of = exact,
       .is_sum = true,
       .less_base = Shown::if_asked},
      {.figure = {.name = "hits",
                  .heading = "tokens",
                  .meaning = "share of an answer's tokens that greedy decoding gives behind those before",
                  .format = Format::share,
                  .better = Better::higher},
       .of = hits,
       .error = Shown::if_asked,
       .less_base = Shown::if_asked},
      {.figure = {.name = "hidden_error",
                  .heading = "hidden",
                  .meaning = "|| h - h_full ||_2 / || h_full ||_2 of the hidden state behind the last layer",
                  .better = Better::lower},
       .of = [](View view) { return view.run ? view.run->hidden_error.back() : kUndefined; }},
      {.figure = {.name = "entries",
                  .heading = "entries",
                  .meaning = "that a step attends to, per KV head",
                  .better = Better::lower},
       .of = mean_of_list<&RunFigures::entries>},
      {.figure = {.name = "stored_entries",
                  .heading = "stored entries",
                  .meaning = "the same, with the full cache that merging in periods keeps",
                  .better = Better::lower,
                  .shown = Shown::if_asked},
       .of = mean_of_list<&RunFigures::stored_entries>},
  };
}

// As `replay` calls them.
std::vector<TaskFigure> open_loop_figures() {
  std::vector<TaskFigure> figures;
  const auto add = [&](const char* name, double (*of)(View)) {
    Figure figure = std::ranges::find(replay_figures(), name, [](const ReplayFigure& one) {
                      return one.figure.name;
                    })->figure;
    figure.shown = Shown::if_asked;
    figures.push_back({.figure = std::move(figure), .of = of});
  };
  add("perturbation", open_loop<&OpenLoop::perturbation>);
  add("relative", open_loop<&OpenLoop::relative>);
  add("layer_perturbation", open_loop<&OpenLoop::layer_perturbation>);
  add("layer_relative", open_loop<&OpenLoop::layer_relative>);
  add("bound", open_loop<&OpenLoop::bound>);
  add("kept_mass", open_loop<&OpenLoop::kept_mass>);
  add("recall", open_loop<&OpenLoop::recall>);
  add("violations",
      [](View view) { return view.run ? static_cast<double>(view.run->violations) : kUndefined; });
  figures.back().is_sum = true;
  return figures;
}

}  // namespace

const std::vector<TaskFigure>& task_figures() {
  static const std::vector<TaskFigure> kFigures = [] {
    std::vector<TaskFigure> all = closed_loop_figures();
    for (TaskFigure& figure : open_loop_figures()) all.push_back(std::move(figure));
    return all;
  }();
  return kFigures;
}

std::vector<std::string> open_loop_names() {
  std::vector<std::string> names;
  for (const TaskFigure& figure : open_loop_figures()) names.push_back(figure.figure.name);
  return names;
}

}  // namespace kvbound::sim
