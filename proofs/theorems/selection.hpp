// Checks of the reference's selection against the exact one.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/proofs/engine/theorem.hpp>
#include <kvbound/proofs/oracle/bounded.hpp>

namespace kvbound::proofs {

/// The reference's selection may differ from the exact one only between entries whose scores differ by less
/// than their error bounds, and never between equal tokens, where the smaller index wins.
///
/// scores                [tokens], exact, with the bounds of the reference's errors
/// exact_choice, choice  ascending tokens
void hold_selection(const Instance& instance, const oracle::Row& scores,
                    const std::vector<int64_t>& exact_choice, const std::vector<int64_t>& choice,
                    Outcome& outcome);

/// The tokens that the reference keeps by these stage-two scores [tokens], given the instance's stage one.
std::vector<int64_t> computed_choice(const Instance& instance, const std::vector<double>& stage_two_scores);

}  // namespace kvbound::proofs
