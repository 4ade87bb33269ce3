// The result of `diff`, as a table for people and as JSON for programs (diff.schema.json).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/diff/claims/dump_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "agreement_report.hpp"

#include "table.hpp"

namespace kvbound::sim {

struct DiffReport {
  traces::TraceInfo trace;
  std::string trace_sha256;
  std::string dump_path;
  DumpInfo dump;
  std::vector<JudgedTensor> tensors;  ///< by layer, then in the order of dump_tensors()

  Verdict verdict() const;       ///< on all tensors that the dump has
  std::string unjudged() const;  ///< what keeps it from agreeing though nothing differs: text_of_unjudged
  /// The first tensor that differs, in the order of dump_tensors(), in the layer where its error/bound is largest; null
  /// if all agree.
  const JudgedTensor* first_difference() const;
  /// The number of tensors that differ, all layers of a tensor counted as one.
  int64_t differing_tensors() const;
};

/// A table for a terminal, one row per tensor; tensors that differ come first.
std::string text_report(const DiffReport& report, const TextStyle& style);

std::string json_report(const DiffReport& report);

}  // namespace kvbound::sim
