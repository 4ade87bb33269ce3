// The result of `diff --floor`, as a table for people and as JSON for programs (floor.schema.json).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/diff/floor/detection_floor.hpp>
#include <kvbound/traces/trace.hpp>

#include "table.hpp"

namespace kvbound::sim {

struct FloorReport {
  DeclaredArithmetic declared;
  std::optional<traces::TraceInfo> trace;  ///< none for random numbers
  std::string trace_sha256;
  std::string shape;  ///< of random numbers, all options but the tokens
  int64_t seed = 0;
  std::vector<DetectionFloor> floors;
};

/// A table for a terminal, one row per operation and number of tokens, or layer of a trace.
std::string text_report(const FloorReport& report, const TextStyle& style);

std::string json_report(const FloorReport& report);

}  // namespace kvbound::sim
