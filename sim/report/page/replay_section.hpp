// What `replay` measured: perturbations, their bounds and the budgets of heads.
#pragma once

#include <string>

#include "section.hpp"

namespace kvbound::sim {

/// A section for each trace of a document of `replay`; their ids begin with `id`.
Contribution replay_contribution(const Document& document, const std::string& id);

}  // namespace kvbound::sim
