// The detection floor of tensors that are judged number by number: scores and norms.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/diff/claims/tested_implementation.hpp>

#include "detection_floor.hpp"

namespace kvbound::sim {

/// The floors of the scores of a policy, and of its norms and stage-two scores, if it has them.
///
/// implementation  its policy and arithmetic, the rounding of the layer's inputs included
/// score           the operation that computes the policy's score
/// storage         of the tensors
std::vector<DetectionFloor> number_floors(const traces::Layer& layer,
                                          const TestedImplementation& implementation,
                                          const std::string& score, Dtype storage);

}  // namespace kvbound::sim
