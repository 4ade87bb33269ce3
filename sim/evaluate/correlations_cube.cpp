#include "correlations_cube.hpp"

#include <algorithm>
#include <utility>

#include <kvbound/sim/figures/list_cube.hpp>

#include "estimate_columns.hpp"

namespace kvbound::sim {
namespace {

using Estimates = std::vector<std::optional<Estimate>>;

template <class Choices>
Column names_of(Figure figure, const Choices& choices) {
  Column names = text_column(std::move(figure));
  for (const auto choice : choices) names.texts().emplace_back(name(choice));
  return names;
}

Estimates estimates_of(const std::vector<Correlation>& correlations,
                       std::optional<Estimate> Correlation::*one) {
  Estimates all;
  for (const Correlation& correlation : correlations) all.push_back(correlation.*one);
  return all;
}

Column counts_of(const char* name, const Estimates& estimates) {
  Column counts = number_column(count_figure(name, "tasks that have one", Shown::if_asked));
  for (const std::optional<Estimate>& estimate : estimates)
    counts.numbers().push_back(estimate ? static_cast<double>(estimate->count) : kUndefined);
  return counts;
}

std::vector<Column> columns(const std::vector<Correlation>& all) {
  std::vector<Column> columns{
      number_column(count_figure("policies", "that have the indicator", Shown::if_asked))};
  for (const Correlation& one : all) columns[0].numbers().push_back(static_cast<double>(one.policies));
  const auto add = [&](const Figure& mean, std::optional<Estimate> Correlation::*one) {
    const Estimates estimates = estimates_of(all, one);
    for (Column& column : estimate_columns(mean, Shown::if_asked, Shown::if_asked, estimates))
      columns.push_back(std::move(column));
    columns.push_back(counts_of((mean.name + "_count").c_str(), estimates));
  };
  add(number_figure("of_tasks", "of a task",
                    "Spearman's rank correlation over the runs of a task, mean over tasks", Better::higher),
      &Correlation::of_tasks);
  add(number_figure("pairs", "share of the pairs of runs of a task that both order alike, mean over tasks",
                    Format::share, Better::higher),
      &Correlation::pairs);
  const Figure of_means = number_figure(
      "of_means", "of means", "Spearman's rank correlation of the runs' means over tasks", Better::higher);
  columns.push_back(number_column(of_means));
  for (const Correlation& one : all) columns.back().numbers().push_back(one.of_means.value_or(kUndefined));
  std::vector<std::optional<Interval>> intervals;
  for (const Correlation& one : all) intervals.push_back(one.of_means_interval);
  for (Column& end : interval_columns(of_means, Shown::if_asked, intervals))
    columns.push_back(std::move(end));
  return columns;
}

}  // namespace

Cube correlations_cube(const EvaluateResult& result, const Bootstrap& bootstrap, const SharedAxis& kinds) {
  const std::vector<Correlation> all = correlations(result, bootstrap);
  const size_t each =
      kOutcomes.size() * kIndicators.size() * static_cast<size_t>(std::max<int64_t>(kinds->size(), 1));
  Column budgets = text_column(text_figure("budget", "of the runs; or all together"));
  for (size_t i = 0; i < all.size() / each; ++i)
    budgets.texts().push_back(all[i].budget ? to_string(*all[i].budget) : "all");
  const Figure outcome = text_figure("outcome", "what is to be predicted");
  const Figure indicator = text_figure(
      "indicator", "what predicts it; other_half: the outcome on the other half of the tokens, a ceiling",
      Shown::always);
  return {"correlations",
          {kinds, axis("outcome", {names_of(outcome, kOutcomes)}),
           axis("indicator", {names_of(indicator, kIndicators)}), axis("budget", {budgets})},
          columns(all)};
}

}  // namespace kvbound::sim
