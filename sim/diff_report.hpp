// What `diff` found, for people (a table) and for programs (JSON, see diff.schema.json).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/traces/trace.hpp>

#include "comparison.hpp"
#include "dump_file.hpp"

namespace kvbound::sim {

/// One tensor of one layer.
struct JudgedTensor {
  int64_t layer = 0;
  TensorAgreement agreement;
};

/// What may be said of a tensor, or of all.
enum class Verdict { agrees, differs, no_evidence };

/// differs: an element is outside; no_evidence: nothing was judged, or only zeros that are zero.
Verdict verdict(const TensorAgreement& agreement);

struct DiffReport {
  traces::TraceInfo trace;
  std::string trace_sha256;
  std::string dump_path;
  DumpInfo dump;
  reference::Arithmetic arithmetic;
  std::vector<JudgedTensor> tensors;  ///< by layer, then in the order of tensor_names()

  /// differs if any tensor does; no_evidence if none agrees, or one has elements of which none was judged.
  Verdict verdict() const;
  /// The first tensor, in the order of tensor_names(), that differs, in the layer where it is farthest out; null if all
  /// agree.
  const JudgedTensor* first_difference() const;
  /// Tensors, layers counted together, that differ.
  int64_t differing_tensors() const;
};

/// "layers.2.output[5, 3, 17] is 1.5, the reference says 1.25, bound 0.01 (25 times the bound)"
std::string text_of(const JudgedTensor& tensor);

/// A table for a terminal, a row per tensor, those that differ first.
std::string text_report(const DiffReport& report, bool colour);

std::string json_report(const DiffReport& report);

}  // namespace kvbound::sim
