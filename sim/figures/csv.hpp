// Cubes as CSV: a row for each combination of places.
#pragma once

#include <string>

#include "cube.hpp"

namespace kvbound::sim {

/// The line of headings: the part's subject, all keys of its cubes of rows, their columns.
std::string csv_headings(const Part& part);
/// A key that a cube does not have is "all"; a number that is not finite, or of another
/// cube's column, is empty.
std::string csv_rows(const Part& part);

/// A field as it is, or in quotes if it has a comma, quotes or line breaks in it; quotes inside are doubled.
std::string csv_field(const std::string& text);

}  // namespace kvbound::sim
