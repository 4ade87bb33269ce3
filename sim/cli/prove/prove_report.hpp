// The results of `prove`, as text for people and as JSON for programs (prove.schema.json).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/proofs/engine/prove.hpp>
#include <kvbound/proofs/engine/search.hpp>

#include <kvbound/sim/figures/table.hpp>
#include "counterexample.hpp"

namespace kvbound::sim {

struct Searched {
  const proofs::Theorem* theorem = nullptr;
  proofs::Tightest tightest;
};

/// A stored instance, run again.
struct Replayed {
  StoredInstance stored;
  std::optional<std::string> failure;  ///< the claim that does not hold on it, or why it is undecided
  bool undecided = false;              ///< whether the instance could not be evaluated
  std::optional<double> ratio;

  bool weakened() const { return stored.property != &stored.theorem->property; }
  /// Whether the outcome is the required one: a theorem holds, a weakened claim fails.
  bool as_it_must() const { return !undecided && failure.has_value() == weakened(); }
};

/// All results of one run of the command.
struct ProveReport {
  int64_t cases = 0;
  uint64_t seed = 0;
  double search_seconds = 0;
  std::vector<proofs::PropertyResult> properties;
  std::vector<Searched> searches;
  std::vector<Replayed> replayed;
};

/// A verdict as text, such as "no counterexample in 2000 cases".
std::string describe(const proofs::PropertyResult& result);

/// A theorem's entry in the catalogue as text: statement, hypotheses, claims.
std::string describe(const proofs::Theorem& theorem);

/// The tables, then each counterexample with its instance on one line.
std::string text_report(const ProveReport& report, const TextStyle& style);
std::string json_report(const ProveReport& report);

}  // namespace kvbound::sim
