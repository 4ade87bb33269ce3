// An evaluation's results as text.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/evaluate/evaluate_cubes.hpp>
#include <kvbound/sim/figures/table.hpp>

namespace kvbound::sim {

/// Per kind of tasks: what became of the model, answers by depth, the open-loop
/// figures, and the correlations.
///
/// part     evaluate_part of the report
/// style    how tables are printed, and whether plots follow them
/// columns  of the table of runs, instead of those shown by default and of the open-loop figures
std::string text_report(const EvaluateReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns = {});

}  // namespace kvbound::sim
