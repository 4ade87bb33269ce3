// Plots of a replay for a terminal.
#pragma once

#include <string>

#include <kvbound/sim/figures/cube.hpp>
#include <kvbound/sim/figures/table.hpp>

namespace kvbound::sim {

/// Relative L by budget, and for every policy, at its largest budget, the change of L against the base
/// by layer and query head.
///
/// part  replay_part
std::string replay_plots(const Part& part, const TextStyle& style);

}  // namespace kvbound::sim
