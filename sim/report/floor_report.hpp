// The result of `diff --floor`, as a table for people and as a part of a document.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/diff/floor/detection_floor.hpp>
#include <kvbound/traces/trace.hpp>

#include <kvbound/sim/figures/cube.hpp>
#include <kvbound/sim/figures/table.hpp>

namespace kvbound::sim {

struct FloorReport {
  DeclaredArithmetic declared;
  std::optional<traces::TraceInfo> trace;  ///< none for random numbers
  std::string trace_sha256;
  std::string shape;  ///< of random numbers, all options but the tokens
  int64_t seed = 0;
  std::vector<DetectionFloor> floors;
};

/// Facts of what the floors are of; floors, which CSV has, too.
Part floor_part(const FloorReport& report);
/// The figures of the table, for --columns.
std::vector<Figure> floor_columns();

/// A table for a terminal, one row per operation and number of tokens, or layer of a trace.
std::string text_report(const FloorReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns = {});

}  // namespace kvbound::sim
