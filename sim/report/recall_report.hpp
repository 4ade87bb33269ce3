// What recall found, for people (a table), for programs (JSON, see recall.schema.json) and for plots (CSV).
#pragma once

#include <string>

#include <kvbound/sim/study/recall.hpp>

namespace kvbound::sim {

struct RecallReport {
  RecallResult result;
  std::string sha256;  ///< of the trace; empty if no output asked for it
};

/// A table of means over layers and query heads. colour: headings by ANSI escapes.
std::string text_report(const RecallReport& report, bool colour);

std::string json_report(const RecallReport& report);

/// A row per layer, query head, score and window.
std::string csv_report(const RecallReport& report);

}  // namespace kvbound::sim
