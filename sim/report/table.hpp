// Tables for a terminal.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace kvbound::sim {

using TableRow = std::vector<std::string>;

struct TableStyle {
  size_t left_columns = 1;  ///< aligned left; the others right
  bool colour = false;      ///< headings bold, alarming cells red, by ANSI escapes
  std::function<bool(const std::string& heading, const std::string& cell)> alarming = {};
};

/// Columns as wide as their widest field, two spaces apart. The first row has the headings; no row has more
/// cells.
std::string table(const std::vector<TableRow>& rows, const TableStyle& style = {});

/// Whether standard output is a terminal that wants colour (NO_COLOR is not set).
bool colour_wanted();

}  // namespace kvbound::sim
