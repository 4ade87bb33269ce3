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

std::vector<TaskFigure> closed_loop_figures() {
  return {
      {.figure = number_figure("kl", "KL", "KL(full || compressed) of the next token's distribution, nats",
                               Better::lower),
       .of = mean_of_list<&RunFigures::kl>,
       .error = Shown::by_default,
       .less_base = Shown::by_default},
      {.figure = number_figure("nll", "NLL", "-ln p of the given tokens, nats a token", Better::lower),
       .of = [](View view) { return mean_of(view.nll()); },
       .less_base = Shown::if_asked},
      {.figure = number_figure("delta_nll", "dNLL",
                               "by how much that is more than the full cache's: noisy, may be negative",
                               Better::lower),
       .of =
           [](View view) {
             return view.run ? mean_of(view.nll()) - mean_of(view.result.full_nll) : kUndefined;
           },
       .error = Shown::by_default},
      {.figure =
           number_figure("agreement", "top-1", "share of tokens whose most likely token is the full cache's",
                         Format::share, Better::higher),
       .of =
           [](View view) { return view.run ? share_equal(view.top1(), view.result.full_top1) : kUndefined; },
       .error = Shown::if_asked},
      {.figure = count_figure("exact", "answers that greedy decoding gives whole", Better::higher),
       .of = exact,
       .is_sum = true,
       .less_base = Shown::if_asked},
      {.figure = number_figure("hits", "tokens",
                               "share of an answer's tokens that greedy decoding gives behind those before",
                               Format::share, Better::higher),
       .of = hits,
       .error = Shown::if_asked,
       .less_base = Shown::if_asked},
      {.figure = number_figure(
           "hidden_error", "hidden",
           "|| h - h_full ||_2 / || h_full ||_2 of the hidden state behind the last layer", Better::lower),
       .of = [](View view) { return view.run ? view.run->hidden_error.back() : kUndefined; }},
      {.figure = number_figure("entries", "that a step attends to, per KV head", Better::lower),
       .of = mean_of_list<&RunFigures::entries>},
      {.figure = number_figure("stored_entries", "stored entries",
                               "the same, with the full cache that merging in periods keeps", Better::lower,
                               Shown::if_asked),
       .of = mean_of_list<&RunFigures::stored_entries>},
  };
}

// As `replay` calls them.
std::vector<TaskFigure> open_loop_figures() {
  std::vector<TaskFigure> figures;
  const auto add = [&](const char* name, std::function<double(View)> of) {
    Figure figure = std::ranges::find(replay_figures(), name, [](const ReplayFigure& one) {
                      return one.figure.name;
                    })->figure;
    figure.shown = Shown::if_asked;
    figures.push_back({.figure = std::move(figure), .of = std::move(of)});
  };
  for (const auto& [name, figure] : kOpenLoopFigures)
    add(name, [figure](View view) {
      return view.run ? (view.run->open_loop.*figure).value_or(kUndefined) : kUndefined;
    });
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
