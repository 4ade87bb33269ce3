// Which entries the reference selects, held to the exact selection.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/proofs/engine/theorem.hpp>
#include <kvbound/proofs/oracle/bounded.hpp>

namespace kvbound::proofs {

/// The reference may choose otherwise only between scores that its error bounds cannot tell apart, and never
/// between tokens that are the same: there the smaller index wins.
///
/// scores                [tokens], exact, with the bounds of the reference's errors
/// exact_choice, choice  ascending tokens
void hold_selection(const Instance& instance, const oracle::Row& scores,
                    const std::vector<int64_t>& exact_choice, const std::vector<int64_t>& choice,
                    Outcome& outcome);

/// What the reference keeps by these stage-two scores [tokens], with the instance's stage one given to it.
std::vector<int64_t> computed_choice(const Instance& instance, const std::vector<double>& stage_two_scores);

}  // namespace kvbound::proofs
