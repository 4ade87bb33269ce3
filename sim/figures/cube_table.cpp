#include "cube_table.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvbound::sim {
namespace {

// A column of the table: of the cube, or the key of an axis.
struct TableColumn {
  const Column* column;
  std::optional<size_t> axis;
};

bool is_chosen(const Figure& figure, const std::vector<std::string>& columns) {
  if (figure.shown == Shown::always || columns.empty()) return figure.shown != Shown::if_asked;
  return std::ranges::any_of(columns, [&](const std::string& name) { return is_named(figure, name); });
}

std::vector<TableColumn> shown_columns(const Cube& cube, const std::vector<std::string>& columns) {
  std::vector<TableColumn> shown;
  for (size_t a = 0; a < cube.axes.size(); ++a) {
    for (const Column& key : cube.axes[a]->keys) {
      if (key.says_something() && is_chosen(key.figure, columns)) shown.push_back({&key, a});
    }
  }
  for (const Column& column : cube.columns) {
    if (column.says_something() && is_chosen(column.figure, columns)) shown.push_back({&column, {}});
  }
  return shown;
}

std::vector<TableRow> rows_of(const Cube& cube, const std::vector<TableColumn>& shown) {
  std::vector<TableRow> rows(1);
  for (const TableColumn& one : shown) rows.front().push_back(one.column->figure.heading);
  for (int64_t row = 0; row < cube.rows(); ++row) {
    TableRow& cells = rows.emplace_back();
    for (const TableColumn& one : shown)
      cells.push_back(one.column->cell(one.axis ? cube.place(row, *one.axis) : row));
  }
  return rows;
}

// Takes the last columns away until the table fits, but for keys; returns the names of those that are gone.
std::vector<std::string> fit(int64_t width, std::vector<TableColumn>& shown, std::vector<TableRow>& rows) {
  std::vector<std::string> gone;
  while (!shown.back().axis && width_of(rows) > width) {
    gone.insert(gone.begin(), shown.back().column->figure.name);
    shown.pop_back();
    for (TableRow& row : rows) row.pop_back();
  }
  return gone;
}

// more  where the columns can be seen that do not fit
std::string table_of(const Cube& cube, const TextStyle& style, const std::vector<std::string>& columns,
                     std::string_view more) {
  std::vector<TableColumn> shown = shown_columns(cube, columns);
  std::vector<TableRow> rows = rows_of(cube, shown);
  std::vector<std::string> gone;
  if (style.width > 0 && columns.empty() && !style.markdown) gone = fit(style.width, shown, rows);
  const auto alarming = [&](const std::string& heading, const std::string& cell) {
    const auto one =
        std::ranges::find(shown, heading, [](const TableColumn& of) { return of.column->figure.heading; });
    return one->column->figure.alarming && one->column->figure.alarming(cell);
  };
  const std::string text = table(rows, {.text = style, .alarming = alarming});
  if (gone.empty()) return text;
  return text + fmt::format("(more {}: {})\n", more, fmt::join(gone, ", "));
}

}  // namespace

std::vector<Figure> choosable_figures(const Cube& cube) {
  std::vector<Figure> figures;
  for (const SharedAxis& axis : cube.axes) {
    for (const Column& key : axis->keys) {
      if (key.figure.shown != Shown::always) figures.push_back(key.figure);
    }
  }
  for (const Column& column : cube.columns) figures.push_back(column.figure);
  return figures;
}

std::string cube_table(const Cube& cube, const TextStyle& style) {
  return table_of(cube, style, {}, "on a wider terminal");
}

std::string cube_table(const Cube& cube, const TextStyle& style, const std::vector<std::string>& columns) {
  return table_of(cube, style, columns, "by --columns");
}

}  // namespace kvbound::sim
