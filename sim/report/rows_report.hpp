// What reports on two implementations say of their rows, as text and JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/diff/dump_rows.hpp>

#include "agreement_report.hpp"
#include "table.hpp"

namespace kvbound::sim {

/// How the rows of one layer compare.
struct LayerComparison {
  int64_t layer = 0;  ///< negative: of no layer
  LayerRows rows;
};

/// One of two implementations.
struct ComparedFile {
  std::string path;
  Verdict verdict = Verdict::no_evidence;  ///< of all that it holds, by itself
};

/// The rows that A and B both have.
struct ComparedRows {
  std::vector<LayerComparison> layers;  ///< ascending
  bool identical = false;               ///< whether every row is required to be identical

  int64_t rows() const;
  int64_t count(RowVerdict verdict) const;
  /// The verdict of A and of B: differs if a row is wrong, or is not identical where that is required; no evidence if one of them
  /// is, or no row is in both.
  Verdict verdict(Verdict of_a, Verdict of_b) const;
  /// "layers.1.output[3, 0]: reordered", the first row that is not identical; nullopt if there is none.
  std::optional<std::string> first_differing() const;
};

/// "A a.safetensors and B b.safetensors: 90 of 112 rows identical, 20 reordered (at most 2 ulps apart, ...), 2 wrong: A"
std::string sentence(const ComparedFile& a, const ComparedFile& b, const ComparedRows& compared);
/// Which caches differ, the first by name; empty if none do.
///
/// heads  KV heads of all layers
std::string apart_text(const ComparedRows& compared, int64_t heads);
/// A table with a row per tensor; tensors with wrong rows come first. Empty if there are no rows.
std::string rows_table(const ComparedRows& compared, const TextStyle& style);

/// Adds "identical_required", "verdict", "apart" and "tensors".
void add_json(const ComparedRows& compared, Verdict verdict, nlohmann::ordered_json& document);

}  // namespace kvbound::sim
