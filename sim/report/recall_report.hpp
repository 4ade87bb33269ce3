// What `recall` prints.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/study/recall_cubes.hpp>

namespace kvbound::sim {

/// A table of means over layers and query heads.
///
/// part     recall_part of the report
/// style    how tables are printed, and whether plots follow them
/// columns  of the table; empty: those shown by default
std::string text_report(const RecallReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns = {});

}  // namespace kvbound::sim
