// The detection floor of votes, keys and values of merged entries.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/diff/claims/tested_implementation.hpp>

#include "detection_floor.hpp"

namespace kvbound::sim {

/// The floors of `votes`, if the policy's entries have them, `merged_key` and `merged_value` after the
/// prompt, found by an element or by an entry's gain.
///
/// They are of dumps that keep and merge what the reference does, as `kept` and `target_of` say.
/// Only the entries that others merged into count: the others are the prompt's own numbers, of which
/// any factor is found that storage does not hide. Keys that may be of several ranks are left out,
/// too. None if nothing merges.
///
/// implementation  its policy, which forms clusters, budget, arithmetic with the rounding of the layer's
///                 inputs, and merged storage
/// method          the operations' name of the policy: "merged_value, METHOD"
/// storage         of the tensors
std::vector<DetectionFloor> merged_floors(const traces::Layer& layer,
                                          const TestedImplementation& implementation,
                                          const std::string& method, Dtype storage);

}  // namespace kvbound::sim
