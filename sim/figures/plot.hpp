// Figures for a terminal.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "table.hpp"

namespace kvbound::sim {

/// A bar: which curve it is of, and where on it.
struct Bar {
  std::string series, place;
  std::optional<double> value;  ///< at least 0; none: no bar
};

/// Horizontal bars that begin at 0, those of a series one below the other. Of Unicode blocks in colour, else of '#'. Empty if no bar
/// has a value.
///
/// bars  grouped by series
std::string bar_chart(const std::string& title, const std::vector<Bar>& bars, const TextStyle& style);

/// Numbers by row and column.
struct CellMap {
  std::string title;
  std::vector<std::string> rows;  ///< names
  size_t columns = 0;             ///< numbered from 0
  std::vector<double> values;     ///< [rows, columns]; NaN: none
  bool diverging = false;         ///< coloured by sign and size, else from the least to the largest
};

/// A map of cells: coloured, else with digits: ninths of the largest size with their sign, or tenths of the range.
std::string cell_map(const CellMap& cells, const TextStyle& style);

}  // namespace kvbound::sim
