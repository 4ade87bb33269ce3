// Judges the best of several selections, such as that of theta-sweep, where rounding may
// change each of those compared.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "near_tie.hpp"

namespace kvbound::sim {

/// A number and a bound on its error.
struct UncertainNumber {
  double value = 0;
  double error = 0;

  /// Whether it is below another whatever the errors are.
  bool is_clearly_below(const UncertainNumber& other) const;
};

/// One of the selections that are compared.
struct SweptSelection {
  std::vector<int64_t>
      own;  ///< the reference's, ascending, or another by exact scores where rounding decides a stage's size
  /// What is wrong with a set as this selection's result; nullopt: rounding explains it.
  std::function<std::optional<Fault>(std::span<const int64_t>)> fault;
  std::vector<int64_t> open;  ///< ascending: the candidates of which rounding decides whether they are in it
};

/// By one score: the k candidates of largest score. The result refers to the scores.
SweptSelection swept_top_k(const UncertainScores& scores, int64_t k);
/// CriticalKV's two stages. The result refers to the scores.
SweptSelection swept_critical(const UncertainScores& attention, const UncertainScores& stage_two, int64_t k,
                              const CountRange& stage_one_counts);

struct SweepJudgement {
  std::optional<Fault>
      fault;  ///< what is wrong; its `faulty` counts the candidates that the reference does not select
  bool undecided = false;
};

/// Judges the claimed one of several selections, of which the one with the smallest bound is to be taken.
///
/// It must be one that rounding allows one of them to be, and none of the others may be surely better. Where
/// rounding leaves one of the others several possibilities, it may have been a worse one than the
/// reference's, by any of which the claimed choice is explained. These are tried; where there are too many of
/// them, the claim is undecided.
///
/// bound    of a selection, with its error; infinite where it keeps no mass
/// own      the reference's choice
/// claimed  another set, of as many candidates, ascending
SweepJudgement judge_sweep(const std::vector<SweptSelection>& selections,
                           const std::function<UncertainNumber(const std::vector<int64_t>&)>& bound,
                           const std::vector<int64_t>& own, const std::vector<int64_t>& claimed);

}  // namespace kvbound::sim
