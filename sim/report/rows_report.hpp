// What reports on two implementations say of their rows, as sentences and cubes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/diff/dump_rows.hpp>

#include <kvbound/sim/diff/agreement_summary.hpp>
#include <kvbound/sim/figures/cube.hpp>
#include <kvbound/sim/figures/table.hpp>

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
  /// The verdict of A and of B: differs if a row is wrong, or is not identical where that is required; no
  /// evidence if one of them is, or no row is in both.
  Verdict verdict(Verdict of_a, Verdict of_b) const;
  /// "layers.1.output[3, 0]: reordered", the first row that is not identical; nullopt if there is none.
  std::optional<std::string> first_differing() const;
};

/// "A a.safetensors and B b.safetensors: 90 of 112 rows identical, 20 reordered (at most 2 ulps
/// apart, ...), 2 wrong: A"
std::string sentence(const ComparedFile& a, const ComparedFile& b, const ComparedRows& compared);
/// Which caches differ, the first by name; empty if none do.
///
/// heads  KV heads of all layers
std::string apart_text(const ComparedRows& compared, int64_t heads);
/// compared   tensors, each over all layers, as tables show it; those with wrong rows come first
/// tensors    by layer
/// differing  rows that are not identical
/// apart      KV heads whose caches differ
std::vector<Cube> rows_cubes(const ComparedRows& compared);
/// The figures of tables of compared tensors, for --columns.
std::vector<Figure> rows_columns();
/// The table of a part with these cubes; empty if there are no rows.
std::string rows_table(const Part& part, const TextStyle& style, const std::vector<std::string>& columns);

}  // namespace kvbound::sim
