// What was proved, for people and for programs (JSON, see prove.schema.json).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/proofs/engine/prove.hpp>
#include <kvbound/proofs/engine/search.hpp>

#include "counterexample.hpp"

namespace kvbound::sim {

struct Searched {
  const proofs::Theorem* theorem = nullptr;
  proofs::Tightest tightest;
};

/// A stored instance, run again.
struct Replayed {
  StoredInstance stored;
  std::optional<std::string> failure;  ///< the claim that does not hold on it
  bool undecided = false;              ///< because it could not be evaluated
  std::optional<double> ratio;

  bool weakened() const { return stored.property != &stored.theorem->property; }
  /// A theorem holds; a weakened claim fails.
  bool as_it_must() const { return !undecided && failure.has_value() == weakened(); }
};

/// All that one run of the command found.
struct ProveReport {
  int64_t cases = 0;
  uint64_t seed = 0;
  double search_seconds = 0;
  std::vector<proofs::PropertyResult> properties;
  std::vector<Searched> searches;
  std::vector<Replayed> replayed;
};

/// What a verdict is in words: "no counterexample in 2000 cases".
std::string describe(const proofs::PropertyResult& result);

/// The catalogue's entry: statement, hypotheses, claims.
std::string describe(const proofs::Theorem& theorem);

/// Tables, then each counterexample with its instance on a line of its own.
std::string text_report(const ProveReport& report, bool colour);
std::string json_report(const ProveReport& report);

}  // namespace kvbound::sim
