// The figures of a replay for a terminal.
#pragma once

#include <optional>
#include <string>

#include "report.hpp"

namespace kvbound::sim {

/// Mean relative perturbations by policy and budget; and of each policy, at its largest budget, the change of every head's mean
/// perturbation against the base's.
std::string replay_plots(const Report& report, const std::optional<Policy>& base, const TextStyle& style);

}  // namespace kvbound::sim
