// The search for counterexamples to theorems and weakened claims.
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
  no_counterexample,  ///< theorem: no case violates it
  violated,           ///< theorem: a counterexample was found
  counterexample,     ///< weakened claim: a counterexample was found, as required
  none_found,  ///< weakened claim: no counterexample was found, so the property cannot detect a false claim
  regimes_too_rare,  ///< theorem: too few cases of a regime, so the cases are not representative
  undecided,         ///< an instance could not be evaluated, which neither refutes nor supports the property
};
const char* name(Verdict verdict);

/// An instance for which a property does not hold.
struct Counterexample {
  Instance instance;       ///< shrunk: no simpler instance fails in the same way
  std::string failure;     ///< the claim that fails on it, with both sides
  bool undecided = false;  ///< the property was not violated but could not be evaluated
  int64_t found_at = 0;    ///< number of the case, from 1
  int64_t shrinks = 0;     ///< number of shrinking steps from the drawn instance
};

struct PropertyResult {
  const Theorem* theorem = nullptr;
  const Property* property = nullptr;
  int64_t cases = 0;
  std::vector<int64_t> regime_cases;  ///< in the order of regimes()
  int64_t reference_cases = 0;        ///< cases in which the double reference was compared with exact values
  std::optional<double> tightest;     ///< largest ratio
  Verdict verdict = Verdict::no_counterexample;
  std::optional<Counterexample> counterexample;

  std::span<const Regime> regimes() const { return theorem->sizes.regimes(); }
  bool weakened() const { return property != &theorem->property; }
  double share(int64_t some) const { return static_cast<double>(some) / static_cast<double>(cases); }
};

/// The smallest share of cases that must belong to each regime.
inline constexpr double kRegimeShare = 0.05;

/// The largest number of instances drawn for a weakened claim, if `cases` are drawn for a theorem. It is
/// larger, so that a counterexample is not missed by chance; the search ends with the first one.
constexpr int64_t weakened_cases(int64_t cases) { return std::max<int64_t>(10 * cases, 20000); }

/// Draws instances until the property fails on one, and shrinks that instance to a simplest one.
///
/// Case i of a property depends only on the seed, the property's id and i, not on threads or on other
/// properties. For a weakened claim up to weakened_cases(cases) instances are drawn.
///
/// cases     >= 1
/// progress  called with the number of cases done, if given
PropertyResult examine(const Theorem& theorem, const Property& property, int64_t cases, uint64_t seed,
                       const std::function<void(int64_t)>& progress = {});

/// The outcome of a property for one instance; undecided if evaluating it throws.
Outcome check(const Property& property, const Instance& instance);

}  // namespace kvbound::proofs
