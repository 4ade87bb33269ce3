// Tables for a terminal.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvbound::sim {

using TableRow = std::vector<std::string>;

/// How text is printed.
struct TextStyle {
  bool colour = false;    ///< ANSI escapes and Unicode blocks: headings bold, alarming cells red
  bool markdown = false;  ///< tables as Markdown's
  bool plot = false;      ///< figures behind the tables
  int64_t width = 0;      ///< that tables should fit; 0: as wide as they are
};

struct TableStyle {
  size_t left_columns = 1;  ///< number of left-aligned columns; the others are right-aligned
  TextStyle text = {};
  std::function<bool(const std::string& heading, const std::string& cell)> alarming = {};
};

/// A table whose columns are as wide as their widest cell, two spaces apart. The first row has the headings;
/// no row may have more cells.
std::string table(const std::vector<TableRow>& rows, const TableStyle& style = {});

/// A figure in four significant digits; "-" if there is none.
std::string cell(std::optional<double> figure);

/// How wide a table of these rows is.
int64_t width_of(const std::vector<TableRow>& rows);

/// Colours if standard output is a terminal and NO_COLOR is not set; as wide as the terminal.
TextStyle terminal_style();

}  // namespace kvbound::sim
