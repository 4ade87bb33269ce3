// The result of `predict`, as tables for people and as JSON for programs (predict.schema.json).
#pragma once

#include <string>

#include <kvbound/sim/study/predict.hpp>

#include <kvbound/sim/figures/table.hpp>

namespace kvbound::sim {

struct PredictReport {
  PredictResult result;
  std::string sha256;  ///< of the trace; empty if no output needs it
};

/// Tables of means and medians over layers, query heads and decode steps.
///
/// style  how tables are printed, and whether figures follow them
std::string text_report(const PredictReport& report, const TextStyle& style);

std::string json_report(const PredictReport& report);

}  // namespace kvbound::sim
