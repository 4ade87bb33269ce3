#include "cube_slice.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

size_t axis_of(const Cube& cube, std::string_view name) {
  const auto found = std::ranges::find(cube.axes, name, [](const SharedAxis& axis) { return axis->name; });
  return static_cast<size_t>(found - cube.axes.begin());
}

// The values at these rows, or places.
Column chosen(const Column& column, std::span<const int64_t> rows) {
  Column some{column.figure};
  std::visit(
      [&](const auto& all) {
        auto values = std::decay_t<decltype(all)>();
        for (const int64_t row : rows) values.push_back(all[static_cast<size_t>(row)]);
        some.values = std::move(values);
      },
      column.values);
  return some;
}

// The rows whose place on the axis is one of these, in their order.
std::vector<int64_t> rows_at(const Cube& cube, size_t axis, std::span<const int64_t> places) {
  int64_t inner = 1, outer = 1;
  for (size_t a = 0; a < cube.axes.size(); ++a) (a < axis ? outer : inner) *= cube.axes[a]->size();
  const int64_t size = cube.axes[axis]->size(), step = size > 0 ? inner / size : 0;
  std::vector<int64_t> rows;
  for (int64_t o = 0; o < outer; ++o) {
    for (const int64_t place : places) {
      for (int64_t i = 0; i < step; ++i) rows.push_back((o * size + place) * step + i);
    }
  }
  return rows;
}

std::vector<Column> chosen(const std::vector<Column>& columns, std::span<const int64_t> rows) {
  std::vector<Column> some;
  for (const Column& column : columns) some.push_back(chosen(column, rows));
  return some;
}

}  // namespace

Cube restricted(const Cube& cube, std::string_view axis, std::span<const int64_t> places) {
  const size_t a = axis_of(cube, axis);
  Cube part{cube.name, cube.axes, chosen(cube.columns, rows_at(cube, a, places)), cube.is_detail};
  part.axes[a] = std::make_shared<const Axis>(Axis{std::string(axis), chosen(cube.axes[a]->keys, places)});
  return part;
}

Cube at_place(const Cube& cube, std::string_view axis, int64_t place) {
  Cube part = restricted(cube, axis, {&place, 1});
  part.axes.erase(part.axes.begin() + static_cast<std::ptrdiff_t>(axis_of(cube, axis)));
  return part;
}

Cube side_by_side(const Cube& cube, std::string_view axis, std::string_view key) {
  const SharedAxis& along = cube.axes[axis_of(cube, axis)];
  const Column& names =
      *std::ranges::find(along->keys, key, [](const Column& one) { return one.figure.name; });
  const auto is_shown = [](const Column& column) { return column.figure.shown != Shown::if_asked; };
  const bool is_one = std::ranges::count_if(cube.columns, is_shown) == 1;
  Cube wide{cube.name, cube.axes, {}, cube.is_detail};
  wide.axes.erase(wide.axes.begin() + static_cast<std::ptrdiff_t>(axis_of(cube, axis)));
  for (int64_t place = 0; place < along->size(); ++place) {
    for (Column& column : at_place(cube, axis, place).columns) {
      if (!is_shown(column)) continue;
      column.figure.name = fmt::format("{}_{}", column.figure.name, names.text(place));
      column.figure.heading =
          is_one ? names.text(place) : fmt::format("{} {}", names.text(place), column.figure.heading);
      wide.columns.push_back(std::move(column));
    }
  }
  return wide;
}

}  // namespace kvbound::sim
