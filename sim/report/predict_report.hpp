// What predict found, for people (tables) and for programs (JSON, see predict.schema.json).
#pragma once

#include <string>

#include <kvbound/sim/study/predict.hpp>

namespace kvbound::sim {

struct PredictReport {
  PredictResult result;
  std::string sha256;  ///< of the trace; empty if no output asked for it
};

/// Tables of means and medians over layers, query heads and decode steps. colour: headings by ANSI escapes.
std::string text_report(const PredictReport& report, bool colour);

std::string json_report(const PredictReport& report);

}  // namespace kvbound::sim
