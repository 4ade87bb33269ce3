// The result of `predict`, as tables for people and as JSON for programs (predict.schema.json).
#pragma once

#include <string>

#include <kvbound/sim/study/predict.hpp>

namespace kvbound::sim {

struct PredictReport {
  PredictResult result;
  std::string sha256;  ///< of the trace; empty if no output needs it
};

/// Tables of means and medians over layers, query heads and decode steps.
///
/// colour  mark headings by ANSI escapes
std::string text_report(const PredictReport& report, bool colour);

std::string json_report(const PredictReport& report);

}  // namespace kvbound::sim
