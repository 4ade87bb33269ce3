// A replay's results as text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>

namespace kvbound::sim {

/// What the outputs and the text of this style need.
ReplayDetail replay_detail(const Outputs& outputs, const TextStyle& style);

/// The table of runs, and those of agreement and times if several backends replayed.
///
/// part     replay_part of the report
/// style    how tables are printed, and whether plots follow them
/// columns  of the table of runs, besides those of the run; empty: those shown by default
std::string text_report(const ReplayReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns = {});

}  // namespace kvbound::sim
