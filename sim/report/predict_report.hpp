// What `predict` prints.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/study/predict_cubes.hpp>

namespace kvbound::sim {

/// Tables of predictors, of entries that re-enter, and of shares of attention.
///
/// part     predict_part of the report
/// style    how tables are printed, and whether plots follow them
/// columns  of the table of predictors; empty: those shown by default
std::string text_report(const PredictReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns = {});

}  // namespace kvbound::sim
