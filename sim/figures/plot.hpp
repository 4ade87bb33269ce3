// Figures for a terminal.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cube.hpp"
#include "table.hpp"

namespace kvbound::sim {

/// A bar: which curve it is of, and where on it.
struct Bar {
  std::string series, place;
  std::optional<double> value;  ///< at least 0; none: no bar
};

/// Horizontal bars that begin at 0, those of a series one below the other. Of Unicode blocks in colour, else
/// of '#'. Empty if no bar has a value.
///
/// bars  grouped by series
std::string bar_chart(const std::string& title, const std::vector<Bar>& bars, const TextStyle& style);

/// A bar for each row of a cube that has a number, those of a series side by side, in the
/// order of their first ones.
///
/// series, place  keys of the cube's axes; an empty series: all bars are of one
/// column         of numbers
std::vector<Bar> bars_of(const Cube& cube, std::string_view series, std::string_view place,
                         std::string_view column);

/// Numbers by row and column.
struct CellMap {
  std::string title;
  std::vector<std::string> rows;  ///< names
  size_t columns = 0;             ///< numbered from 0
  std::vector<double> values;     ///< [rows, columns]; NaN: none
  bool diverging = false;         ///< coloured by sign and size, else from the least to the largest
};

/// A map of cells: coloured, else with digits: ninths of the largest size with their
/// sign, or tenths of the range.
std::string cell_map(const CellMap& cells, const TextStyle& style);

}  // namespace kvbound::sim
