#include "correlations.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/sim/figures/cube.hpp>

namespace kvbound::sim {
namespace {

enum class Tokens { all, even, odd };

// The mean of an outcome over some of a target's tokens.
double outcome_of(Outcome outcome, Tokens tokens, const TaskResult& task, size_t run) {
  double sum = 0;
  int64_t count = 0;
  for (size_t i = tokens == Tokens::odd ? 1 : 0; i < task.full_nll.size();
       i += tokens == Tokens::all ? 1 : 2) {
    switch (outcome) {
      case Outcome::kl:
        sum += task.runs[run].kl[i];
        break;
      case Outcome::delta_nll:
        sum += task.runs[run].nll[i] - task.full_nll[i];
        break;
    }
    ++count;
  }
  return sum / static_cast<double>(count);  // no token: 0/0
}

double indicator_of(Indicator indicator, Outcome outcome, const TaskResult& task, size_t run) {
  const OpenLoop& figures = task.runs[run].open_loop;
  const auto lost = [](std::optional<double> kept) { return kept ? 1 - *kept : kUndefined; };
  switch (indicator) {
    case Indicator::perturbation:
      return figures.perturbation.value_or(kUndefined);
    case Indicator::perturbation_with_bound:
      return figures.bound ? figures.perturbation.value_or(kUndefined) : kUndefined;
    case Indicator::layer_relative:
      return figures.layer_relative.value_or(kUndefined);
    case Indicator::bound:
      return figures.bound.value_or(kUndefined);
    case Indicator::lost_mass:
      return lost(figures.kept_mass);
    case Indicator::missed:
      return lost(figures.recall);
    case Indicator::other_half:
      return outcome_of(outcome, Tokens::odd, task, run);
  }
  return kUndefined;  // not reached
}

// An indicator's and an outcome's figures: [tasks] of [runs].
struct Points {
  std::vector<std::vector<double>> x, y;

  // The sums over some tasks, [runs], whose ranks are those of the means.
  static std::vector<double> sums(const std::vector<std::vector<double>>& figures,
                                  std::span<const int64_t> tasks) {
    std::vector<double> all(figures.front().size());
    for (const int64_t task : tasks) {
      for (size_t r = 0; r < all.size(); ++r) all[r] += figures[task][r];
    }
    return all;
  }
  double correlation_of_means(std::span<const int64_t> tasks) const {
    return rank_correlation(sums(x, tasks), sums(y, tasks));
  }
  // The finite values of a statistic of every task.
  template <class Statistic>
  std::vector<double> of_tasks(const Statistic& statistic) const {
    std::vector<double> values;
    for (size_t task = 0; task < x.size(); ++task) {
      if (const double value = statistic(x[task], y[task]); std::isfinite(value)) values.push_back(value);
    }
    return values;
  }
};

bool all_finite(const std::vector<double>& numbers) {
  return std::ranges::all_of(numbers, [](double number) { return std::isfinite(number); });
}

// The figures of the runs that have the indicator, of all tasks that have all of them.
Points points_of(const EvaluateResult& result, const std::vector<size_t>& tasks,
                 const std::vector<size_t>& runs, Indicator indicator, Outcome outcome) {
  const Tokens tokens = indicator == Indicator::other_half ? Tokens::even : Tokens::all;
  Points points;
  for (const size_t t : tasks) {
    const TaskResult& task = result.results[t];
    std::vector<double> x, y;
    for (const size_t run : runs) {
      x.push_back(indicator_of(indicator, outcome, task, run));
      y.push_back(outcome_of(outcome, tokens, task, run));
    }
    if (!all_finite(x) || !all_finite(y)) continue;
    points.x.push_back(std::move(x));
    points.y.push_back(std::move(y));
  }
  return points;
}

// The runs at a budget, or at all of them, that have the indicator on some of the tasks.
std::vector<size_t> runs_with(const EvaluateResult& result, const std::vector<size_t>& tasks,
                              const std::optional<Budget>& budget, Indicator indicator) {
  std::vector<size_t> runs;
  for (size_t r = 0; r < result.options.runs.size(); ++r) {
    if (budget && result.options.runs[r].budget != *budget) continue;
    const auto has = [&](size_t task) {
      return std::isfinite(indicator_of(indicator, Outcome::kl, result.results[task], r));
    };
    if (std::ranges::any_of(tasks, has)) runs.push_back(r);
  }
  return runs;
}

Correlation correlation_of(const EvaluateResult& result, const TaskKind& kind,
                           const std::optional<Budget>& budget, Indicator indicator, Outcome outcome,
                           const Bootstrap& bootstrap) {
  Correlation found{kind.name, kind.answers, outcome, indicator, budget, 0, {}, {}, {}, {}};
  const std::vector<size_t> runs = runs_with(result, kind.tasks, budget, indicator);
  found.policies = std::ssize(runs);
  const Points points = points_of(result, kind.tasks, runs, indicator, outcome);
  if (runs.size() < 2 || points.x.empty()) return found;
  found.of_tasks = bootstrap.mean(points.of_tasks(rank_correlation));
  found.pairs = bootstrap.mean(points.of_tasks(share_ordered_alike));
  std::vector<int64_t> all(points.x.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  if (const double value = points.correlation_of_means(all); std::isfinite(value)) found.of_means = value;
  found.of_means_interval = bootstrap.interval(
      std::ssize(all), [&](std::span<const int64_t> tasks) { return points.correlation_of_means(tasks); });
  return found;
}

}  // namespace

std::string_view name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kl:
      return "kl";
    case Outcome::delta_nll:
      return "delta_nll";
  }
  return "";
}

std::string_view name(Indicator indicator) {
  switch (indicator) {
    case Indicator::perturbation:
      return "perturbation";
    case Indicator::perturbation_with_bound:
      return "perturbation_with_bound";
    case Indicator::layer_relative:
      return "layer_relative";
    case Indicator::bound:
      return "bound";
    case Indicator::lost_mass:
      return "lost_mass";
    case Indicator::missed:
      return "missed";
    case Indicator::other_half:
      return "other_half";
  }
  return "";
}

std::vector<Correlation> correlations(const EvaluateResult& result, const Bootstrap& bootstrap) {
  std::vector<std::optional<Budget>> budgets;
  for (const Run& run : result.options.runs) {
    if (std::ranges::find(budgets, std::optional(run.budget)) == budgets.end())
      budgets.emplace_back(run.budget);
  }
  if (budgets.size() > 1) budgets.emplace_back(std::nullopt);
  std::vector<Correlation> all;
  for (const TaskKind& kind : kinds_of(result.tasks)) {
    for (const Outcome outcome : kOutcomes) {
      for (const Indicator indicator : kIndicators) {
        for (const std::optional<Budget>& budget : budgets)
          all.push_back(correlation_of(result, kind, budget, indicator, outcome, bootstrap));
      }
    }
  }
  return all;
}

}  // namespace kvbound::sim
