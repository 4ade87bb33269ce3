// What `diff` found, for people (a table) and for programs (JSON, see diff.schema.json).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/diff/dump_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "agreement_report.hpp"

namespace kvbound::sim {

struct DiffReport {
  traces::TraceInfo trace;
  std::string trace_sha256;
  std::string dump_path;
  DumpInfo dump;
  reference::Arithmetic arithmetic;
  std::vector<JudgedTensor> tensors;  ///< by layer, then in the order of dump_tensors()

  /// differs if any tensor does; no_evidence if none agrees, or one has elements of which none was
  /// judged; those that follow from the kept set, such as the perturbation, may.
  Verdict verdict() const;
  /// The first tensor, in the order of dump_tensors(), that differs, in the layer where it is farthest out; null if all
  /// agree.
  const JudgedTensor* first_difference() const;
  /// Tensors, layers counted together, that differ.
  int64_t differing_tensors() const;
};

/// A table for a terminal, a row per tensor, those that differ first.
std::string text_report(const DiffReport& report, bool colour);

std::string json_report(const DiffReport& report);

}  // namespace kvbound::sim
