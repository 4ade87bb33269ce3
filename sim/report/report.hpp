// A replay's results: a table for people, JSON for programs (replay.schema.json), CSV for plots.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/replay/replay.hpp>

#include "environment.hpp"
#include "table.hpp"

namespace kvbound::sim {

/// The results of one trace, and the trace's hash.
struct Report {
  ReplayResult result;
  std::string sha256;  ///< of the trace; empty if no output needs it
};

/// The names of all columns that a table can have besides policy and budget, in order.
std::vector<std::string> column_names();

/// A table for a terminal.
///
/// style    how tables are printed, and whether figures follow them
/// columns  names of columns, in any order
std::string text_report(const Report& report, const std::optional<Policy>& base, const TextStyle& style,
                        const std::vector<std::string>& columns = column_names());

/// The description of a trace in a JSON document.
nlohmann::ordered_json trace_json(const traces::TraceInfo& info, const std::string& sha256);

/// A quoted CSV field; quotes inside it are doubled.
std::string quoted_field(const std::string& text);

/// A replay's JSON document, written trace by trace: that of many traces need not fit into memory.
class JsonReport {
 public:
  /// The document up to its traces.
  ///
  /// environment  of the replay: environment()
  static std::string beginning(const std::optional<Policy>& base, const Environment& environment);

  /// write  is given the text behind the beginning piece by piece
  JsonReport(std::function<void(std::string_view)> write, const std::optional<Policy>& base)
      : write_(std::move(write)), base_(base) {}
  void add(const Report& report);
  /// The document's end; call it once.
  void finish();

 private:
  std::function<void(std::string_view)> write_;
  std::optional<Policy> base_;
  bool has_traces_ = false;
};

/// CSV with one row per trace, run, layer, decode step and query head; rows with head "all" are of the layer's sum.
std::string csv_headings();
std::string csv_rows(const Report& report);

}  // namespace kvbound::sim
