// Cubes as tables.
#pragma once

#include <string>
#include <vector>

#include "cube.hpp"
#include "table.hpp"

namespace kvbound::sim {

/// A row for each combination of places: the keys, and those columns that say something. Where no columns are
/// asked for, those that do not fit the style's width are left out from the right, and named below the table.
///
/// columns  those that --columns asks for, by names or headings (is_named); empty: those shown by default
std::string cube_table(const Cube& cube, const TextStyle& style, const std::vector<std::string>& columns);

/// The same of a table that --columns does not choose from.
std::string cube_table(const Cube& cube, const TextStyle& style);

/// The figures that --columns can choose from in the cube's table: its columns, and the keys that are not
/// always shown.
std::vector<Figure> choosable_figures(const Cube& cube);

}  // namespace kvbound::sim
