// The result of `diff A B --against TRACE`, as a table for people and as JSON for programs (against.schema.json).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/diff/rows.hpp>

#include "diff_report.hpp"

namespace kvbound::sim {

/// How the rows of one layer compare.
struct LayerComparison {
  int64_t layer = 0;
  LayerRows rows;
};

struct AgainstReport {
  DiffReport a, b;                      ///< each against the reference, of one trace, policy and budget
  std::vector<LayerComparison> layers;  ///< ascending: those that both have
  bool identical = false;               ///< whether every row is required to be identical

  int64_t rows() const;
  int64_t count(RowVerdict verdict) const;
  /// The verdict of A and of B: differs if a row is wrong, or is not identical where that is required; no evidence if one of them
  /// is, or no row is in both.
  Verdict verdict() const;
  /// "layers.1.output[3, 0]: reordered", the first row that is not identical; nullopt if there is none.
  std::optional<std::string> first_differing() const;
};

/// A sentence, what the dumps are, and a table with a row per tensor; tensors with wrong rows come first.
std::string text_report(const AgainstReport& report, const TextStyle& style);

std::string json_report(const AgainstReport& report);

}  // namespace kvbound::sim
