// The result of `recall`: a table for people, JSON for programs (recall.schema.json), CSV for plots.
#pragma once

#include <string>

#include <kvbound/sim/study/recall.hpp>

#include <kvbound/sim/figures/table.hpp>

namespace kvbound::sim {

struct RecallReport {
  RecallResult result;
  std::string sha256;  ///< of the trace; empty if no output needs it
};

/// A table of means over layers and query heads.
///
/// style  how tables are printed, and whether figures follow them
std::string text_report(const RecallReport& report, const TextStyle& style);

std::string json_report(const RecallReport& report);

/// CSV with one row per layer, query head, score and window.
std::string csv_report(const RecallReport& report);

}  // namespace kvbound::sim
