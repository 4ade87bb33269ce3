// A replay's results for people (a table), for programs (JSON, see replay.schema.json) and for plots (CSV).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/replay/replay.hpp>

namespace kvbound::sim {

/// One trace's results, with what a report says of the input.
struct Report {
  ReplayResult result;
  std::string sha256;  ///< of the trace; empty if no output asked for it
};

/// The names of the columns that a table can have beside policy and budget, in their order.
std::vector<std::string> column_names();

/// A table for a terminal.
///
/// colour   mark headings and violations by ANSI escapes
/// columns  names of columns, in any order
std::string text_report(const Report& report, const std::optional<Policy>& base, bool colour,
                        const std::vector<std::string>& columns = column_names());

/// What a JSON document says of a trace.
nlohmann::ordered_json trace_json(const traces::TraceInfo& info, const std::string& sha256);

/// A CSV field in quotes, which are doubled inside it.
std::string quoted_field(const std::string& text);

std::string json_report(const std::vector<Report>& reports, const std::optional<Policy>& base);

/// A row per trace, run, layer, decode step and query head; the row with head "all" is the layer's sum.
std::string csv_report(const std::vector<Report>& reports);

}  // namespace kvbound::sim
