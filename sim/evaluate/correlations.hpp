// Does the perturbation, or a bound of it, predict what compression does to the model?
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evaluate.hpp"
#include "statistics.hpp"

namespace kvbound::sim {

/// What is to be predicted, per task and run: means over the target's tokens.
enum class Outcome { kl, delta_nll };
inline constexpr std::array kOutcomes{Outcome::kl, Outcome::delta_nll};
std::string_view name(Outcome outcome);

/// What predicts it: open-loop figures (the perturbation also of the runs alone that have a bound, beside the
/// bound), and, for comparison, the outcome itself on the other half of the tokens.
enum class Indicator {
  perturbation,
  perturbation_with_bound,
  layer_relative,
  bound,
  lost_mass,
  missed,
  other_half
};
inline constexpr std::array kIndicators{Indicator::perturbation,   Indicator::perturbation_with_bound,
                                        Indicator::layer_relative, Indicator::bound,
                                        Indicator::lost_mass,      Indicator::missed,
                                        Indicator::other_half};
std::string_view name(Indicator indicator);

/// How well an indicator orders the runs of one budget, or of all budgets, as an outcome
/// does on the tasks of a kind.
struct Correlation {
  std::string kind;
  bool answers = false;  ///< as of TaskKind
  Outcome outcome;
  Indicator indicator;
  std::optional<Budget> budget;  ///< none: all budgets pooled, where most of what is predicted is the budget
  int64_t policies = 0;          ///< that have the indicator: merging policies have no bound
  /// Spearman's correlation over the runs of one task, mean over tasks.
  std::optional<Estimate> of_tasks;
  /// Spearman's correlation over the runs' means over tasks.
  std::optional<double> of_means;
  std::optional<Interval> of_means_interval;
  /// Of all pairs of runs of one task, the share that both order alike, mean over tasks. 1/2 is chance.
  std::optional<Estimate> pairs;
};

/// All outcomes by all indicators, for every kind of tasks, every budget and all budgets pooled. Tasks in
/// which nothing is ordered (too few runs, or equal figures) are left out.
///
/// `other_half` orders by the mean over the tokens of odd index, and is held against the mean over
/// those of even index: both have the noise of half the tokens, so that this ceiling is too low, and a
/// good figure may surpass it.
///
/// Kinds are not pooled: means would be mostly those of the kind whose figures are largest, and tasks of
/// different kinds may share their prompts, so that they are no independent draws.
std::vector<Correlation> correlations(const EvaluateResult& result, const Bootstrap& bootstrap);

}  // namespace kvbound::sim
