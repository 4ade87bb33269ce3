// Looks for counterexamples.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "theorem.hpp"

namespace kvbound::proofs {

enum class Verdict {
  no_counterexample,  ///< of a theorem: none in all cases
  violated,           ///< of a theorem: one was found
  counterexample,     ///< of a weakened claim: one was found, as it must
  none_found,         ///< of a weakened claim: none was found, so the property has no teeth
  regimes_too_rare,   ///< of a theorem: too few cases of a regime, so what was found says little
  undecided,          ///< an instance could not be evaluated, which neither refutes nor supports
};
const char* name(Verdict verdict);

/// An instance for which a property does not hold.
struct Counterexample {
  Instance instance;       ///< shrunk: nothing simpler will do
  std::string failure;     ///< which claim fails on it, with both its sides
  bool undecided = false;  ///< it does not fail, but could not be evaluated
  int64_t found_at = 0;    ///< the case, from 1
  int64_t shrinks = 0;     ///< steps from what was drawn
};

struct PropertyResult {
  const Theorem* theorem = nullptr;
  const Property* property = nullptr;
  int64_t cases = 0;
  std::vector<int64_t> regime_cases;  ///< in the order of regimes()
  int64_t reference_cases = 0;        ///< with the double reference held to the exact values
  std::optional<double> tightest;     ///< largest ratio
  Verdict verdict = Verdict::no_counterexample;
  std::optional<Counterexample> counterexample;

  std::span<const Regime> regimes() const { return theorem->sizes.regimes(); }
  bool weakened() const { return property != &theorem->property; }
  double share(int64_t some) const { return static_cast<double>(some) / static_cast<double>(cases); }
};

/// The share of cases that each regime must have.
inline constexpr double kRegimeShare = 0.05;

/// Instances drawn for a weakened claim if `cases` are for a theorem: the search ends with the first
/// counterexample, and none is to be missed for bad luck.
constexpr int64_t weakened_cases(int64_t cases) { return std::max<int64_t>(10 * cases, 20000); }

/// Draws instances and looks for one for which the property fails; of the first it shrinks to a simplest one.
///
/// Case i of a property depends on the seed, the property's id and i alone, neither on threads nor on what
/// else is proved. For a weakened claim up to weakened_cases(cases) are drawn.
///
/// cases     >= 1
/// progress  called with cases done, if given
PropertyResult examine(const Theorem& theorem, const Property& property, int64_t cases, uint64_t seed,
                       const std::function<void(int64_t)>& progress = {});

/// What one instance says of a property; undecided if evaluating it throws.
Outcome check(const Property& property, const Instance& instance);

}  // namespace kvbound::proofs
