// The results of `prove` as text for people.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/figures/table.hpp>

#include "prove_cubes.hpp"

namespace kvbound::sim {

/// A theorem's entry in the catalogue as text: statement, hypotheses, claims.
std::string describe(const proofs::Theorem& theorem);

/// Tables of what was tried and of its regimes, then each counterexample with its instance on one line.
///
/// columns  of the first table; empty: those shown by default
std::string text_report(const ProveReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns);

}  // namespace kvbound::sim
