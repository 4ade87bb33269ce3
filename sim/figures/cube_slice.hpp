// Parts of cubes, and cubes with the places of an axis side by side.
#pragma once

#include <span>
#include <string_view>

#include "cube.hpp"

namespace kvbound::sim {

/// The rows at some places of an axis.
Cube restricted(const Cube& cube, std::string_view axis, std::span<const int64_t> places);

/// The rows at one place of an axis, without that axis.
Cube at_place(const Cube& cube, std::string_view axis, int64_t place);

/// Without an axis: each column that is shown by default becomes one column for each of the axis' places.
///
/// key  of the axis, whose values are the columns' headings, before the figure's if there are several figures
Cube side_by_side(const Cube& cube, std::string_view axis, std::string_view key);

}  // namespace kvbound::sim
