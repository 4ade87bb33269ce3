// The results of `prove` as cubes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/proofs/engine/prove.hpp>
#include <kvbound/proofs/engine/search.hpp>
#include <kvbound/sim/figures/cube.hpp>

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

/// Whether the outcome is the required one.
bool as_it_must(proofs::Verdict verdict);

/// The document's part. Among its facts are the instances, each whole, that counterexamples,
/// searches and stored files have.
///
///     theorems   [theorem]           what they say
///     properties [property]          theorems and weakened claims: verdicts
///     regimes    [property, regime]  shares of the cases
///     searches   [search]            tightest instances that were found
///     replayed   [instance]          stored instances, run again
Part prove_part(const ProveReport& report);

/// The figures of the properties, for --columns.
std::vector<Figure> prove_columns();

}  // namespace kvbound::sim
